"""The Python rank of a job whose other ranks are C++ programs (mixed_rank.cpp)."""

import torch
import torch.distributed as dist

import torch_tutti

torch.manual_seed(3)
dist.init_process_group("tutti")
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
model = torch_tutti.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    for micro in range(2):
        model(torch.full((2, 3), 0.1 * (step + micro + dist.get_rank()))).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
total = sum(tensor.detach().double().abs().sum().item() for tensor in model.parameters())
print(f"ended with {total:.9f} after {model.stats()['rounds']} rounds", flush=True)
dist.barrier()
dist.destroy_process_group()
