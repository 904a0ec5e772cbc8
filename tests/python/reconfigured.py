"""Of ranks 0 to 2 one is killed. The other two go on as a group, and process 3 joins them."""

import datetime
import os
import signal
import sys

import torch
import torch.distributed as dist

import torch_tutti

folder, killed = sys.argv[1], int(sys.argv[2])
process = int(os.environ["RANK"])
timeout = datetime.timedelta(seconds=60)
files = dist.FileStore(os.path.join(folder, "store"), -1)
files.set_timeout(timeout)


def exchange(processes, name):
    """Exchanges the handles of `processes`."""
    files.set(f"{name} {process}", dist._get_reconfigure_handle())
    return [files.get(f"{name} {other}").decode() for other in processes]


def check_sum():
    numbers = torch.full((1000,), dist.get_rank() + 1.0)
    dist.all_reduce(numbers)
    assert numbers[999].item() == dist.get_world_size() * (dist.get_world_size() + 1) / 2, numbers


if process == 3:
    dist.init_process_group(
        "tutti", store=dist.HashStore(), rank=0, world_size=1, timeout=timeout, enable_reconfigure=True
    )
    try:
        check_sum()
        raise SystemExit("a group without ranks added up")
    except torch_tutti.UsageError as error:
        assert "call reconfigure first" in str(error), error
else:
    dist.init_process_group(
        "tutti", store=dist.PrefixStore("job", files), rank=process, world_size=3, timeout=timeout
    )
assert dist._supports_reconfigure()

survivors = [rank for rank in range(3) if rank != killed]
if process != 3:
    check_sum()
    if process == killed:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            check_sum()
    except torch_tutti.PeerError as error:
        assert list(error.ranks) == [killed], error
    try:
        dist._reconfigure(uuid=1, handles=["no handle"])
        raise SystemExit("a wrong handle was accepted")
    except torch_tutti.UsageError as error:
        assert "is no handle of the backend tutti" in str(error), error
    dist._reconfigure(uuid=1, handles=exchange(survivors, "two"), timeout=timeout).wait()
    assert (dist.get_rank(), dist.get_world_size()) == (survivors.index(process), 2)
    check_sum()

dist._reconfigure(uuid=2, handles=set(exchange([*survivors, 3], "three"))).wait()
assert (dist.get_rank(), dist.get_world_size()) == ([*survivors, 3].index(process), 3)
check_sum()

# Training begins with the model of rank 0, a survivor.
torch.manual_seed(process)
model = torch_tutti.DistributedDataParallel(torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.full((2, 3), dist.get_rank() + 1.0)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
weights = [torch.zeros(1, 3) for _ in range(3)]
dist.all_gather(weights, model.module.weight.detach())
assert all(torch.equal(weight, weights[0]) for weight in weights), weights
dist.barrier()
print("trained", flush=True)
os._exit(0)
