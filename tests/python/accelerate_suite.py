"""One of Accelerate's own test scripts over the backend tutti, as ranks of `tutti launch`:

    accelerate_suite.py test_sync [ours]

`ours`: over torch_tutti.DistributedDataParallel in the place of PyTorch's.
"""

import contextlib
import importlib
import os
import sys

import torch
import torch.distributed as dist

import torch_tutti

os.environ["ACCELERATE_USE_CPU"] = "true"
name, *words = sys.argv[1:]
sys.argv = [name]
dist.init_process_group(os.environ.get("BACKEND", "tutti"))
if "ours" in words:
    torch_tutti.accelerate()
from accelerate import Accelerator  # noqa: E402
from accelerate.state import PartialState  # noqa: E402
from accelerate.utils import DistributedType  # noqa: E402

# Some scripts construct their state without asking for the CPU. They then find this state, which all ranks have.
assert PartialState(cpu=True).num_processes == dist.get_world_size()
assert dist.get_backend() == os.environ.get("BACKEND", "tutti")  # the state itself always says gloo
script = importlib.import_module(f"accelerate.test_utils.scripts.{name}")
if name == "test_ddp_comm_hook":
    # The script's reference model sets a device for each rank, which PyTorch refuses for models in CPU memory.
    original = torch.nn.parallel.DistributedDataParallel

    class WithoutDevices(original):
        def __init__(self, module, device_ids=None, output_device=None, **options):
            super().__init__(module, **options)

    torch.nn.parallel.DistributedDataParallel = WithoutDevices
if name == "test_distributed_data_loop":
    # Accelerate joins uneven inputs only for models on GPUs. For other models it warns, and the ranks hang, over Gloo too.
    original_join = Accelerator.join_uneven_inputs

    @contextlib.contextmanager
    def join_uneven_inputs(self, *words, **options):
        with contextlib.ExitStack() as stack:
            kind = self.state.distributed_type
            if kind == DistributedType.MULTI_CPU:
                self.state.distributed_type = DistributedType.MULTI_GPU
            try:
                stack.enter_context(original_join(self, *words, **options))
            finally:
                self.state.distributed_type = kind
            yield

    Accelerator.join_uneven_inputs = join_uneven_inputs
script.main()
print(f"{name} passed over {'torch_tutti' if 'ours' in words else 'PyTorch'}'s model", flush=True)
if dist.is_initialized():
    dist.destroy_process_group()
