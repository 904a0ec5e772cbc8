"""The Python ranks of a job whose other ranks are C++ programs (mixed_rank.cpp): all print the same lines. They
connect through a store in the file that the argument names."""

import datetime
import os
import sys

import torch
import torch.distributed as dist

import torch_tutti


def bits(name, tensors):
    print(name, *(word for tensor in tensors for word in tensor.detach().flatten().view(torch.int32).tolist()), flush=True)


torch.manual_seed(3)
dist.init_process_group(
    "tutti",
    init_method="file://" + sys.argv[1],
    rank=int(os.environ["RANK"]),
    world_size=int(os.environ["WORLD_SIZE"]),
    timeout=datetime.timedelta(seconds=60),
)
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
model = torch_tutti.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    for micro in range(2):
        model(torch.full((2, 3), 0.1 * (step + micro + dist.get_rank()))).pow(2).mean().backward()
    optimizer.step()
    bits(f"gradients {step}", [tensor.grad for tensor in net.parameters()])
    optimizer.zero_grad()
bits("parameters", net.parameters())
print("syncs", model.stats()["syncs"], flush=True)
dist.barrier()
dist.destroy_process_group()
