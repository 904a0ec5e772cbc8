"""tutti for PyTorch: a backend for torch.distributed, and data-parallel training with one synchronization per step.

    import torch.distributed as dist
    import torch_tutti

    dist.init_process_group("tutti")
    model = torch_tutti.DistributedDataParallel(model)

The training loop, the optimizer and the launcher need no change.
"""

from torch_tutti._build import version as __version__
from torch_tutti import _torch_version

_torch_version.check()

from torch_tutti._accelerate import accelerate  # noqa: E402
from torch_tutti._backend import Options, backend_name  # noqa: E402
from torch_tutti._distributed_data_parallel import DistributedDataParallel  # noqa: E402
from torch_tutti.errors import Error, MismatchError, PeerError, TimeoutError, UsageError  # noqa: E402

__all__ = [
    "DistributedDataParallel",
    "Error",
    "MismatchError",
    "Options",
    "PeerError",
    "TimeoutError",
    "UsageError",
    "__version__",
    "accelerate",
    "backend_name",
]
