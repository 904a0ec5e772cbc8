"""Gradient accumulation by hand with a DistributedSampler: two ranks and one process end with the same parameters."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import torch_tutti
from support import case, rank, run, size

epochs, batch_size, accumulated = 2, 2, 2


def points():
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(8 * size(), 4, generator=generator)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def network():
    torch.manual_seed(11)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))


def train(model, loader, sampler=None):
    loss_function = torch.nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for epoch in range(epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for index, (inputs, targets) in enumerate(loader):
            loss = loss_function(model(inputs), targets) / accumulated
            loss.backward()
            if (index + 1) % accumulated == 0 or index + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()


def alone(ranks):
    """The same loop on one process, whose batches are those of all ranks together."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for epoch in range(epochs):
        loaders = []
        for of in range(ranks):
            sampler = DistributedSampler(points(), ranks, of, shuffle=True, seed=3)
            sampler.set_epoch(epoch)
            loaders.append(list(DataLoader(points(), batch_size, sampler=sampler)))
        for index in range(len(loaders[0])):
            for loader in loaders:
                inputs, targets = loader[index]
                (torch.nn.functional.mse_loss(model(inputs), targets) / accumulated / ranks).backward()
            if (index + 1) % accumulated == 0 or index + 1 == len(loaders[0]):
                optimizer.step()
                optimizer.zero_grad()
    return model


@case
def two_ranks_are_one_process():
    sampler = DistributedSampler(points(), size(), rank(), shuffle=True, seed=3)
    model = torch_tutti.DistributedDataParallel(network())
    train(model, DataLoader(points(), batch_size, sampler=sampler), sampler)
    for mine, other in zip(model.parameters(), alone(size()).parameters()):
        assert torch.allclose(mine, other, atol=1e-5), (mine - other).abs().max()
    stats = model.stats()
    assert size() == 1 or stats["syncs_skipped"] > 0, stats


if __name__ == "__main__":
    run()
