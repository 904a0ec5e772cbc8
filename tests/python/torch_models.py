"""PyTorch's libraries over torch.distributed have the same results over the backend tutti as over Gloo."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from support import case, rank, run, same_bits, size

_gloo = []


def gloo():
    if not _gloo:
        _gloo.append(dist.new_group(backend="gloo"))
    return _gloo[0]


class Branches(torch.nn.Module):
    """Some parameters are used on some ranks only."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.first, self.second, self.last = torch.nn.Linear(6, 8), torch.nn.Linear(6, 8), torch.nn.Linear(8, 1)

    def forward(self, data):
        return self.last(torch.tanh(self.second(data) if rank() == 0 else self.first(data)))


def net():
    torch.manual_seed(4)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))


def trained(model, steps=4):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        generator = torch.Generator().manual_seed(10 * step + rank())
        model(torch.randn(5, 6, generator=generator)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [tensor.detach() for tensor in model.state_dict().values()]


def expect_same(mine, other, what):
    for one, its in zip(mine, other, strict=True):
        if size() == 2:
            same_bits(one, its, what)  # a sum of two numbers has only one order
        else:
            assert torch.allclose(one, its, atol=1e-6), what


@case
def distributed_data_parallel():
    for make, options in (
        (net, {}),
        (net, {"static_graph": True}),
        (net, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.0001}),
        (Branches, {"find_unused_parameters": True}),
    ):
        mine = trained(DistributedDataParallel(make(), **options))
        expect_same(mine, trained(DistributedDataParallel(make(), process_group=gloo(), **options)), str(options))


@case
def its_hooks():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    def hooked(group, hook):
        model = DistributedDataParallel(net(), process_group=group)
        state = group
        if hook is powerSGD_hook.powerSGD_hook:
            state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=1, start_powerSGD_iter=2)
        model.register_comm_hook(state, hook)
        return trained(model)

    for hook in (default_hooks.bf16_compress_hook, powerSGD_hook.powerSGD_hook):
        for one, its in zip(hooked(dist.group.WORLD, hook), hooked(gloo(), hook)):
            assert torch.allclose(one.float(), its.float(), atol=1e-2), hook


@case
def fully_sharded():
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(4)
    plain = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    model.load_state_dict(plain.state_dict())
    fully_shard(model, mesh=DeviceMesh("cpu", list(range(size()))))
    expected = trained(DistributedDataParallel(plain, process_group=gloo()))
    for tensor, other in zip(trained(model), expected):
        assert torch.allclose(tensor.full_tensor(), other, atol=1e-5)


@case
def ranks_without_data():
    from torch.distributed.algorithms.join import Join

    def joined(group):
        model = DistributedDataParallel(torch.nn.Linear(6, 1), process_group=group)
        torch.nn.init.ones_(model.module.weight)
        torch.nn.init.zeros_(model.module.bias)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Join([model]):
            for step in range(2 + rank()):
                model(torch.full((2, 6), float(step))).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        return [tensor.detach() for tensor in model.parameters()]

    expect_same(joined(dist.group.WORLD), joined(gloo()), "join")


@case
def optimizers_in_shards():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    model(torch.ones(3, 6) * rank()).sum().backward()
    optimizer.step()
    for tensor in model.parameters():
        of_rank_0 = tensor.detach().clone()
        dist.broadcast(of_rank_0, 0)
        same_bits(tensor.detach(), of_rank_0)


if __name__ == "__main__":
    run()
