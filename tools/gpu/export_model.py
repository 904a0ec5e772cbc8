#!/usr/bin/env python3
"""export_model.py FILE: writes the program that test_gpu's Exported test trains, exported on the GPU if there is one."""
import sys

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(1)
net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(device)
batch = torch.export.Dim("batch", max=1024)
program = torch.export.export(net, (torch.randn(4, 6, device=device),), dynamic_shapes=({0: batch},))
torch.export.save(program, sys.argv[1])
print(f"exported on {device}")
