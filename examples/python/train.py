"""Trains a small model on points, on any number of processes:

    tutti launch -n 2 -- python train.py
    torchrun --nproc_per_node=2 train.py
"""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import torch_tutti

dist.init_process_group("tutti")
torch.manual_seed(1)
inputs = torch.randn(4096, 8)
dataset = TensorDataset(inputs, inputs.norm(dim=1, keepdim=True))
sampler = DistributedSampler(dataset)  # this rank's shard
loader = DataLoader(dataset, batch_size=16, sampler=sampler)

net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
model = torch_tutti.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

for epoch in range(3):
    sampler.set_epoch(epoch)
    for index, (points, targets) in enumerate(loader):
        loss = torch.nn.functional.mse_loss(model(points), targets)
        (loss / 4).backward()
        # The last of 4 passes synchronizes gradients. The last step of an epoch may have fewer passes.
        if (index + 1) % 4 == 0 or index + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
    mean = loss.detach()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    if dist.get_rank() == 0:
        print(f"epoch {epoch}, loss {mean.item():.4f}, {model.stats()['syncs']} exchanges so far")

dist.destroy_process_group()
