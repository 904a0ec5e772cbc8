"""One of Accelerate's own test scripts over the backend tutti, as ranks of `tutti launch`:

    accelerate_suite.py test_sync [ours]

`ours`: over torch_tutti.DistributedDataParallel in the place of PyTorch's.
"""

import importlib
import os
import sys

import torch
import torch.distributed as dist

import torch_tutti

os.environ["ACCELERATE_USE_CPU"] = "true"
name, *words = sys.argv[1:]
sys.argv = [name]
dist.init_process_group("tutti")
if "ours" in words:
    torch_tutti.accelerate()
script = importlib.import_module(f"accelerate.test_utils.scripts.{name}")
if name == "test_ddp_comm_hook":
    # Its reference names a device for each rank, which PyTorch refuses for models in CPU memory.
    original = torch.nn.parallel.DistributedDataParallel

    class WithoutDevices(original):
        def __init__(self, module, device_ids=None, output_device=None, **options):
            super().__init__(module, **options)

    torch.nn.parallel.DistributedDataParallel = WithoutDevices
script.main()
print(f"{name} passed over {'torch_tutti' if 'ours' in words else 'PyTorch'}'s model", flush=True)
if dist.is_initialized():
    dist.destroy_process_group()
