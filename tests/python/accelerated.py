"""Loops with Hugging Face Accelerate over the backend tutti. With `ours` they use torch_tutti.DistributedDataParallel,
otherwise PyTorch's. Each loop ends with the parameters of one process."""

import sys
from contextlib import nullcontext

import torch
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from accelerate.state import AcceleratorState, GradientState
from torch.utils.data import DataLoader, TensorDataset

import torch_tutti
from support import case, rank, run, same_bits, size

ours = "ours" in sys.argv
sys.argv = [word for word in sys.argv if word != "ours"]
accumulated, batch_size, batches = 4, 2, 10  # the last window is short


def points():
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(batch_size * batches * size(), 3, generator=generator)
    return TensorDataset(inputs, inputs.prod(1, keepdim=True))


def network():
    torch.manual_seed(13)
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def prepared(**options):
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, **options)
    assert accelerator.num_processes == size()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    loader = DataLoader(points(), batch_size)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    if size() > 1:
        assert isinstance(model, torch_tutti.DistributedDataParallel) == ours, type(model)
    return accelerator, model, optimizer, loader, scheduler


def loss_function(outputs, targets):
    return torch.nn.functional.mse_loss(outputs, targets)


def sharded():
    """The batches of all ranks, by index of the loop."""
    data = points().tensors
    for index in range(batches):
        first = index * size()
        yield [
            tuple(tensor[(first + of) * batch_size : (first + of + 1) * batch_size] for tensor in data)
            for of in range(size())
        ]


def alone(window, clip=None, scheduled=True):
    """The loop of one process: a step after each `window` batches of every rank, and after the last batches."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for index, of_ranks in enumerate(sharded()):
        for inputs, targets in of_ranks:
            (loss_function(model(inputs), targets) / window / size()).backward()
        if (index + 1) % window == 0 or index + 1 == batches:
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            if scheduled:
                for _ in range(size()):  # Accelerate advances a schedule once per rank
                    scheduler.step()
            optimizer.zero_grad()
    return model


def expect_same(model, other):
    for mine, its in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(mine, its, atol=1e-5), (mine - its).abs().max()


def expect_three_rounds(model):
    """torch_tutti's model synchronized gradients once per step; the last window is short."""
    if ours and size() > 1:
        assert model.stats()["syncs"] == 3, model.stats()


@case
def plain():
    accelerator, model, optimizer, loader, scheduler = prepared()
    for inputs, targets in loader:
        accelerator.backward(loss_function(model(inputs), targets))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    expect_same(model, alone(1))


@case
def by_hand():
    accelerator, model, optimizer, loader, scheduler = prepared()
    for index, (inputs, targets) in enumerate(loader):
        accelerator.backward(loss_function(model(inputs), targets) / accumulated)
        if (index + 1) % accumulated == 0 or index + 1 == len(loader):
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    expect_same(model, alone(accumulated))


@case
def no_sync_until_the_last_batch():
    # With no_sync() of the model, and with that of the accelerator.
    for by_model in (True, False):
        accelerator, model, optimizer, loader, scheduler = prepared()
        for index, (inputs, targets) in enumerate(loader):
            if (index + 1) % accumulated != 0 and index + 1 != len(loader):
                own = model.no_sync() if by_model and size() > 1 else accelerator.no_sync(model)
                with own:
                    accelerator.backward(loss_function(model(inputs), targets) / accumulated)
            else:
                accelerator.backward(loss_function(model(inputs), targets) / accumulated)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        expect_same(model, alone(accumulated))
        expect_three_rounds(model)


@case
def no_sync_around_backward_alone():
    # no_sync() around backward() alone: PyTorch's model synchronizes each pass, torch_tutti's model does not.
    accelerator, model, optimizer, loader, scheduler = prepared()
    for index, (inputs, targets) in enumerate(loader):
        last = (index + 1) % accumulated == 0 or index + 1 == len(loader)
        loss = loss_function(model(inputs), targets) / accumulated
        with nullcontext() if last else accelerator.no_sync(model):
            accelerator.backward(loss)
        if last:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    expect_same(model, alone(accumulated))
    expect_three_rounds(model)


@case
def accumulate():
    accelerator, model, optimizer, loader, scheduler = prepared(gradient_accumulation_steps=accumulated)
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_function(model(inputs), targets))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    expect_same(model, alone(accumulated))
    expect_three_rounds(model)


@case
def local_sgd():
    local_steps = 4
    accelerator, model, optimizer, loader, scheduler = prepared(gradient_accumulation_steps=2)
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=local_steps, enabled=True) as local:
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                accelerator.backward(loss_function(model(inputs), targets))
                optimizer.step()
                optimizer.zero_grad()
                local.step()
    # One process with the data of all ranks.
    models = [network() for _ in range(size())]
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.5) for one in models]

    def average():
        with torch.no_grad():
            for together in zip(*(one.parameters() for one in models)):
                mean = sum(together) / size()
                for tensor in together:
                    tensor.copy_(mean)

    for index, of_ranks in enumerate(sharded()):
        for one, its, (inputs, targets) in zip(models, optimizers, of_ranks):
            (loss_function(one(inputs), targets) / 2).backward()
            if (index + 1) % 2 == 0 or index + 1 == batches:
                its.step()
                its.zero_grad()
        if (index + 1) % local_steps == 0:
            average()
    average()
    expect_same(model, models[0])


@case
def a_train_step_by_hand():
    """no_sync() in some steps, clipping with the norms before and after, and a schedule."""
    accelerator, model, optimizer, loader, scheduler = prepared()
    clip = 0.05

    def norm():
        return torch.nn.utils.get_total_norm([tensor.grad for tensor in model.parameters()])

    def train_a_step(index, inputs, targets):
        should_sync = (index + 1) % accumulated == 0 or index + 1 == len(loader)
        with nullcontext() if should_sync else accelerator.no_sync(model=model):
            accelerator.backward(loss_function(model(inputs), targets) / accumulated)
        if should_sync:
            before = norm()
            accelerator.clip_grad_norm_(model.parameters(), clip)
            assert norm() <= min(before, torch.tensor(clip)) * 1.001
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()

    for index, (inputs, targets) in enumerate(loader):
        train_a_step(index, inputs, targets)
    expect_same(model, alone(accumulated, clip))


@case
def checkpoints_have_the_same_names():
    accelerator, model, *_ = prepared()
    inside = accelerator.unwrap_model(model)
    assert type(inside) is torch.nn.Sequential, type(inside)
    assert list(accelerator.get_state_dict(model)) == list(network().state_dict())
    for mine, other in zip(inside.parameters(), network().parameters()):
        same_bits(mine.detach(), other.detach())
    assert rank() == accelerator.process_index


if __name__ == "__main__":
    if ours:
        torch_tutti.accelerate()
    run()
