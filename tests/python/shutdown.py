"""Programs that exit with and without destroy_process_group(), with a model, with child processes and with threads."""

import os
import sys
import threading

import torch
import torch.distributed as dist

import torch_tutti

how, folder = sys.argv[1:]
dist.init_process_group("tutti")
model = torch_tutti.DistributedDataParallel(torch.nn.Linear(3, 1))
model(torch.ones(2, 3)).sum().backward()
if how == "destroyed":
    dist.destroy_process_group()
elif how == "forked":
    child = os.fork()
    if child == 0:
        os._exit(int(torch.ones(3).sum().item()))  # like DataLoader's workers, which do not communicate
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    dataset = torch.utils.data.TensorDataset(torch.arange(8.0))
    loader = torch.utils.data.DataLoader(dataset, batch_size=2, num_workers=1)
    assert sum(batch[0].sum().item() for batch in loader) == 28
    numbers = torch.ones(2)
    dist.all_reduce(numbers)
    assert numbers[0] == dist.get_world_size()
    dist.destroy_process_group()
elif how == "again":
    del model
    # Another address, because a fast rank would find the first store, which rank 0 still serves.
    dist.destroy_process_group()
    dist.init_process_group("tutti", init_method=f"file://{folder}/store", rank=int(os.environ["RANK"]),
                            world_size=int(os.environ["WORLD_SIZE"]))
    numbers = torch.ones(2)
    dist.all_reduce(numbers)
    dist.destroy_process_group()
elif how == "waited":
    # A thread waits in the backend while the main thread of Python ends.
    waiter = threading.Thread(target=lambda: dist.all_reduce(torch.ones(2)), daemon=True)
    waiter.start()
    if dist.get_rank() == 0:
        sum(range(1000))
    waiter.join()
print("left", flush=True)
