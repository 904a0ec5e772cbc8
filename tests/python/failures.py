"""The exceptions of ranks when the last rank fails. The argument selects the failure."""

import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import torch_tutti

how = sys.argv[1]
dist.init_process_group("tutti", timeout=datetime.timedelta(seconds=5 if how == "late" else 120))
last = dist.get_rank() == dist.get_world_size() - 1
numbers = torch.ones(4)
dist.all_reduce(numbers)

if how == "killed":
    if last:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            dist.all_reduce(numbers)
    except torch_tutti.PeerError as error:
        assert f"rank {dist.get_world_size() - 1}" in str(error) and "all_reduce" in str(error), error
        assert not isinstance(error, torch_tutti.TimeoutError), error
elif how == "late":
    if last:
        time.sleep(8)
    try:
        dist.all_reduce(numbers)
        dist.all_reduce(numbers)
        raise SystemExit("no rank raised an error")
    except torch_tutti.PeerError as error:
        assert last or isinstance(error, torch_tutti.TimeoutError), error
        assert last or dist.get_world_size() - 1 in error.ranks, error.ranks
        assert isinstance(error, dist.DistBackendError)
elif how == "astray":
    # The last rank is in a barrier while the other ranks train.
    model = torch_tutti.DistributedDataParallel(torch.nn.Linear(3, 1))
    try:
        for step in range(10):
            if step == 5 and last:
                dist.barrier()
            model(torch.ones(2, 3)).sum().backward()
        raise SystemExit("no rank raised an error")
    except torch_tutti.MismatchError as error:
        assert "called on some ranks only" in str(error) and "waits in barrier" in str(error), error
elif how == "asynchronous":
    # The future has the same error.
    try:
        dist.all_reduce(torch.ones(3 + int(last)), async_op=True).get_future().wait()
        raise SystemExit("no rank raised an error")
    except (torch_tutti.MismatchError, RuntimeError) as error:
        assert "rank" in str(error), error
    dist.all_reduce(numbers)
print("told", flush=True)
os._exit(0)
