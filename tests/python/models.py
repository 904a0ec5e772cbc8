"""torch_tutti.DistributedDataParallel, compared with one process that has all the data, and with PyTorch's over Gloo."""

import contextlib
import copy

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.utils.checkpoint import checkpoint

import torch_tutti
from support import case, expect, rank, run, same_bits, size

_gloo = []


def gloo():
    if not _gloo:
        _gloo.append(dist.new_group(backend="gloo"))
    return _gloo[0]


def net(seed=3):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def batch(step, micro=0, of=None):
    generator = torch.Generator().manual_seed(1000 * step + 10 * micro + (rank() if of is None else of))
    return torch.randn(5, 6, generator=generator)


def loss_of(model, data):
    return model(data).pow(2).mean()


def parameters_of(model):
    return [tensor.detach().clone() for tensor in model.parameters()]


def trained_alone(optimizer_of, steps, micro_batches, model=None, before_step=lambda model: None):
    """Trains one process on the micro-batches of all ranks. `micro_batches(step)`: their number on each rank."""
    model = model or net()
    optimizer = optimizer_of(model.parameters())
    for step in range(steps):
        count = micro_batches(step)
        for of in range(size()):
            for micro in range(count):
                (loss_of(model, batch(step, micro, of)) / count / size()).backward()
        before_step(model)
        optimizer.step()
        optimizer.zero_grad()
    return parameters_of(model)


def trained_together(optimizer_of, steps, micro_batches, model=None, before_step=lambda model: None, **options):
    model = torch_tutti.DistributedDataParallel(model or net(), **options)
    optimizer = optimizer_of(model.parameters())
    for step in range(steps):
        count = micro_batches(step)
        for micro in range(count):
            (loss_of(model, batch(step, micro)) / count).backward()
        before_step(model)
        optimizer.step()
        optimizer.zero_grad()
    return model


def expect_close(model, expected, tolerance=1e-6):
    for mine, other in zip(model.parameters(), expected, strict=True):
        assert torch.allclose(mine, other, atol=tolerance, rtol=1e-5), (mine - other).abs().max()


@case
def any_optimizer_gives_what_one_process_gives():
    for optimizer_of in (
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=True),
    ):
        for windows in ("automatic", "every_pass"):
            model = trained_together(optimizer_of, 6, lambda step: 3, windows=windows)
            expect_close(model, trained_alone(optimizer_of, 6, lambda step: 3), 2e-5)
            syncs = model.stats()["syncs"]
            # Until the window length is known: every pass of two windows, and the first pass of the third.
            assert syncs == 18 if windows == "every_pass" else syncs < 14, (windows, syncs)


@case
def windows_that_end_early_are_made_up_for():
    def clip(model):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)

    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.1)

    lengths = [3, 3, 3, 3, 2, 3, 1, 3]
    for before_step in (lambda model: None, clip):
        model = trained_together(sgd, len(lengths), lambda step: lengths[step], before_step=before_step)
        expect_close(model, trained_alone(sgd, len(lengths), lambda step: lengths[step], before_step=before_step))
        if size() > 1:
            assert model.stats()["syncs_in_step"] == 2, model.stats()
    own_clip = trained_together(
        sgd, len(lengths), lambda step: lengths[step], before_step=lambda model: model.clip_grad_norm_(0.05)
    )
    for mine, other in zip(own_clip.parameters(), model.parameters()):
        same_bits(mine, other)


@case
def gradients_have_the_bits_of_pytorchs():
    if size() != 2:
        return
    torch_model = TorchDDP(net(), process_group=gloo())
    model = torch_tutti.DistributedDataParallel(net())
    for one in (torch_model, model):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        for step in range(5):
            loss_of(one, batch(step)).backward()
            optimizer.step()
            optimizer.zero_grad()
    for mine, other in zip(model.parameters(), torch_model.parameters()):
        same_bits(mine, other)


@case
def a_loss_scale_that_overflows_skips_the_step_on_all_ranks():
    model = torch_tutti.DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    lengths = [2, 2, 2, 1, 2]
    for step, count in enumerate(lengths):
        for micro in range(count):
            scaler.scale(loss_of(model, batch(step, micro)) / count).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    # All ranks detect an infinity of one rank in a window that ends early.
    before = parameters_of(model)
    data = batch(9) * (float("inf") if rank() == 0 else 1)
    scaler.scale(model(data).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    for mine, other in zip(model.parameters(), before):
        same_bits(mine, other)
    assert scaler.get_scale() < 4.0


@case
def no_sync_keeps_gradients_to_the_rank():
    model = torch_tutti.DistributedDataParallel(net())
    alone = net()
    with model.no_sync():
        assert not model.require_backward_grad_sync
        loss_of(model, batch(0)).backward()
    loss_of(alone, batch(0)).backward()
    for mine, other in zip(model.parameters(), alone.parameters()):
        same_bits(mine.grad, other.grad)
    loss_of(model, batch(1)).backward()
    for of in range(size()):
        if of != rank():
            loss_of(alone, batch(0, of=of)).backward()
        loss_of(alone, batch(1, of=of)).backward()
    for mine, other in zip(model.parameters(), alone.parameters()):
        assert torch.allclose(mine.grad, other.grad / size(), atol=1e-6)
    assert model.stats()["syncs"] == 1


@case
def steps_under_no_sync_are_this_ranks_own():
    model = torch_tutti.DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    alone = net()
    own = torch.optim.SGD(alone.parameters(), lr=0.1)
    with model.no_sync():
        for step in range(3):
            for one, its in ((model, optimizer), (alone, own)):
                loss_of(one, batch(step)).backward()
                its.step()
                its.zero_grad()
    for mine, other in zip(model.parameters(), alone.parameters()):
        same_bits(mine, other)
    if size() > 1:
        # No synchronization has made them equal since.
        expect(torch_tutti.MismatchError, "parameter", lambda: loss_of(model, batch(4)).backward())
    optimizer.zero_grad()
    for tensor in model.parameters():
        mean = tensor.detach().clone()
        dist.all_reduce(mean)
        tensor.data = mean / size()
    loss_of(model, batch(5)).backward()
    optimizer.step()


@case
def buffers_are_those_of_rank_0():
    model = torch_tutti.DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        loss_of(model, batch(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        model(batch(9))
    for buffer in model.buffers():
        of_rank_0 = buffer.clone()
        dist.broadcast(of_rank_0, 0)
        same_bits(buffer, of_rank_0)


@case
def sparse_gradients():
    torch.manual_seed(5)
    table = torch.nn.Embedding(10, 3, sparse=True)
    model = torch_tutti.DistributedDataParallel(torch.nn.Sequential(table, torch.nn.Linear(3, 1)))
    alone = copy.deepcopy(model.module)
    for step in range(3):
        model(torch.tensor([rank(), 7])).sum().backward()
        for of in range(size()):
            (alone(torch.tensor([of, 7])).sum() / size()).backward()
        assert table.weight.grad.is_sparse
        assert torch.allclose(table.weight.grad.to_dense(), alone[0].weight.grad.to_dense(), atol=1e-6)
        for one in (model, alone):
            one.zero_grad()


@case
def a_table_with_max_norm_is_refused_unless_it_is_ignored():
    def model():
        torch.manual_seed(5)
        return torch.nn.Sequential(torch.nn.Embedding(10, 3, max_norm=1.0), torch.nn.Linear(3, 1))

    if size() > 1:
        expect(torch_tutti.UsageError, "the table '0' has max_norm", torch_tutti.DistributedDataParallel, model())
    ignoring = model()
    ignoring._ddp_params_and_buffers_to_ignore = ["0.weight"]
    torch_tutti.DistributedDataParallel(ignoring)


@case
def tied_and_unused_parameters():
    class Branches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)
            self.tied = torch.nn.Linear(6, 6)
            self.tied.weight = self.first.weight
            self.unused = torch.nn.Linear(6, 6)

        def forward(self, data, second):
            data = self.first(data)
            return self.tied(self.second(data) if second else data)

    torch.manual_seed(2)
    model = torch_tutti.DistributedDataParallel(Branches(), find_unused_parameters=True)
    alone = copy.deepcopy(model.module)
    assert alone.tied.weight is alone.first.weight
    for step in range(3):
        model(batch(step), rank() == 0).sum().backward()
        for of in range(size()):
            (alone(batch(step, of=of), of == 0).sum() / size()).backward()
        for mine, other in zip(model.module.parameters(), alone.parameters()):
            assert (mine.grad is None) == (other.grad is None)
            assert mine.grad is None or torch.allclose(mine.grad, other.grad, atol=1e-5)
        assert model.module.unused.weight.grad is None
        for one in (model, alone):
            one.zero_grad()


@case
def files_have_the_names_of_pytorchs():
    model, torch_model = torch_tutti.DistributedDataParallel(net()), TorchDDP(net(), process_group=gloo())
    assert list(model.state_dict()) == list(torch_model.state_dict())
    assert list(dict(model.named_parameters())) == list(dict(torch_model.named_parameters()))
    torch_model.load_state_dict(model.state_dict())
    model.load_state_dict(torch_model.state_dict())
    twin = copy.deepcopy(model)
    loss_of(twin, batch(0)).backward()
    loss_of(model, batch(0)).backward()
    for mine, other in zip(twin.parameters(), model.parameters()):
        same_bits(mine.grad, other.grad)


@case
def copies_need_the_group_of_all_ranks():
    alone = [dist.new_group([of]) for of in range(size())][rank()]
    model = torch_tutti.DistributedDataParallel(net(), process_group=alone)
    expect(torch_tutti.UsageError, "default process group", copy.deepcopy, model)
    loss_of(model, batch(0)).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


@case
def checkpointed_layers():
    class Checkpointed(torch.nn.Module):
        def __init__(self, reentrant):
            super().__init__()
            self.layers = net()
            self.reentrant = reentrant

        def forward(self, data):
            return checkpoint(self.layers, data.requires_grad_(), use_reentrant=self.reentrant)

    for reentrant in (True, False):
        model = torch_tutti.DistributedDataParallel(Checkpointed(reentrant))
        plain = torch_tutti.DistributedDataParallel(net())
        optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, plain)]
        for step in range(4):
            for one, optimizer in zip((model, plain), optimizers):
                loss_of(one, batch(step)).backward()
                optimizer.step()
                optimizer.zero_grad()
        for mine, other in zip(model.parameters(), plain.parameters()):
            same_bits(mine, other)


@case
def saved_optimizers():
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def trained(model, optimizer, steps):
        for step in steps:
            loss_of(model, batch(step)).backward()
            optimizer.step()
            optimizer.zero_grad()
        return parameters_of(model)

    def made():
        model = torch_tutti.DistributedDataParallel(net())
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    first, optimizer = made()
    trained(first, optimizer, range(3))
    of_model, of_optimizer = get_state_dict(first, optimizer)
    assert list(of_model) == list(first.module.state_dict())
    of_model = copy.deepcopy(of_model)
    of_optimizer = copy.deepcopy(of_optimizer)
    expected = trained(first, optimizer, range(3, 6))
    second, optimizer = made()
    set_state_dict(second, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer)
    for mine, other in zip(trained(second, optimizer, range(3, 6)), expected):
        same_bits(mine, other)


@case
def compiled_models():
    inside = torch_tutti.DistributedDataParallel(torch.compile(net(), backend="eager"))
    outside_model = torch_tutti.DistributedDataParallel(net())
    outside = torch.compile(outside_model, backend="eager")
    plain = torch_tutti.DistributedDataParallel(net())
    for one in (inside, outside, plain):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        for step in range(3):
            loss_of(one, batch(step)).backward()
            optimizer.step()
            optimizer.zero_grad()
    for one in (inside, outside):
        for mine, other in zip(one.parameters(), plain.parameters()):
            assert torch.allclose(mine, other, atol=1e-6)


@case
def an_optimizer_that_calls_the_model_itself():
    def lbfgs(model):
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, batch(1, of=0))
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)

    model, alone = torch_tutti.DistributedDataParallel(net()), net()
    lbfgs(model)
    lbfgs(alone)
    expect_close(model, parameters_of(alone), 1e-5)


@case
def a_loop_without_an_optimizer():
    model, alone = torch_tutti.DistributedDataParallel(net()), net()
    for step in range(4):
        loss_of(model, batch(step)).backward()
        for of in range(size()):
            (loss_of(alone, batch(step, of=of)) / size()).backward()
        for one in (model, alone):
            with torch.no_grad():
                for tensor in one.parameters():
                    tensor -= 0.1 * tensor.grad
                    tensor.grad = None
    expect_close(model, parameters_of(alone))


@case
def hooks_become_codecs():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook, quantization_hooks

    plain = torch_tutti.DistributedDataParallel(net())
    loss_of(plain, batch(0)).backward()
    for hook in (default_hooks.bf16_compress_hook, quantization_hooks.quantization_perchannel_hook):
        model = torch_tutti.DistributedDataParallel(net())
        expect(torch_tutti.UsageError, "powerSGD_hook", model.register_comm_hook, None, powerSGD_hook.powerSGD_hook)
        model.register_comm_hook(None, hook)
        loss_of(model, batch(0)).backward()
        for mine, other in zip(model.parameters(), plain.parameters()):
            assert torch.allclose(mine.grad, other.grad, atol=1e-2)
        expect(torch_tutti.UsageError, "once", model.register_comm_hook, None, default_hooks.fp16_compress_hook)


@case
def ranks_without_data_stand_by():
    def joined(model, synchronized_every):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with model.join():
            for step in range(4 + 2 * rank()):
                last = (step + 1) % synchronized_every == 0
                with contextlib.nullcontext() if last else model.no_sync():
                    loss_of(model, batch(step)).backward()
                if last:
                    optimizer.step()
                    optimizer.zero_grad()
        return parameters_of(model)

    for every in (1, 2):
        mine = joined(torch_tutti.DistributedDataParallel(net()), every)
        if size() > 1:
            for one, other in zip(mine, joined(TorchDDP(net(), process_group=gloo()), every)):
                assert torch.allclose(one, other, atol=1e-6), (every, one, other)
        for one in mine:
            of_rank_0 = one.clone()
            dist.broadcast(of_rank_0, 0)
            same_bits(one, of_rank_0)


@case
def several_models_and_optimizers():
    first, second = torch_tutti.DistributedDataParallel(net(1)), torch_tutti.DistributedDataParallel(net(2))
    of_both = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    halves = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (first.module[0], first.module[2])]
    for step in range(4):
        (loss_of(first, batch(step)) + loss_of(second, batch(step))).backward()
        of_both.step()
        of_both.zero_grad()
        loss_of(first, batch(step, 1)).backward()
        for half in halves:
            half.step()
        for half in halves:
            half.zero_grad()
    for model in (first, second):
        for tensor in model.parameters():
            of_rank_0 = tensor.detach().clone()
            dist.broadcast(of_rank_0, 0)
            same_bits(tensor.detach(), of_rank_0)


@case
def a_step_of_an_optimizer_in_shards_is_one_step():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    class WithTable(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()
            # Larger than the net, so it is the whole shard of rank 0.
            self.table = torch.nn.Embedding(1000, 8).requires_grad_(False)

        def forward(self, data):
            return self.net(data)

    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.1)

    def in_shards(parameters):
        return ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=0.1)

    model = trained_together(in_shards, 4, lambda step: 2, model=WithTable())
    expect_close(model, trained_alone(sgd, 4, lambda step: 2, model=WithTable()))
    assert model.reducer.steps() == 4, model.reducer.steps()


@case
def what_cannot_be_done_is_refused():
    make = torch_tutti.DistributedDataParallel
    usage = torch_tutti.UsageError
    expect(usage, "device_ids", make, net(), device_ids=[0])
    expect(usage, "windows='often'", make, net(), windows="often")
    expect(usage, "mixed_precision", make, net(), mixed_precision=object())
    expect(usage, "no parameter", make, torch.nn.Tanh())
    expect(usage, "no shape", make, torch.nn.LazyLinear(3))
    expect(usage, "not over tutti", make, net(), process_group=gloo())
    if size() > 1:
        error = expect(torch_tutti.MismatchError, "different models", make, torch.nn.Linear(2 + rank() % 2, 1))
        assert isinstance(error, dist.DistBackendError)
    model = make(net())
    expect(usage, "create_graph", lambda: loss_of(model, batch(0)).backward(create_graph=True))
    model.zero_grad()
    model.module[0].weight.requires_grad_(False)
    expect(usage, "frozen", lambda: loss_of(model, batch(0)).backward())
    # No parameter that the model trains is in this step.
    inner = net()
    inner[0].weight.requires_grad_(False)
    model = make(inner)
    for parameter in inner.parameters():
        parameter.requires_grad_(parameter is inner[0].weight)
    optimizer = torch.optim.SGD([inner[0].weight], lr=0.1)
    loss_of(model, batch(0)).backward()
    expect(usage, "changed after prepare()", optimizer.step)


@case
def an_exception_in_backward_is_raised_on_all():
    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(context, data):
            return data.clone()

        @staticmethod
        def backward(context, gradient):
            raise ValueError("the data of this rank are broken")

    if size() == 1:
        return
    model = torch_tutti.DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with contextlib.suppress(ValueError) if rank() == 0 else contextlib.nullcontext():
        if rank() == 0:
            hidden = model.module[1](model.module[0](batch(0)))
            model.module[2](Breaks.apply(hidden)).sum().backward()
        else:
            error = expect(torch_tutti.PeerError, "rank 0", lambda: model(batch(0)).sum().backward())
            assert error.ranks == (0,), error.ranks
    if rank() == 0:
        optimizer.zero_grad()
        expect(torch_tutti.Error, "", optimizer.step)
    optimizer.zero_grad()


if __name__ == "__main__":
    run()
