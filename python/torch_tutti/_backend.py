"""The backend "tutti" of torch.distributed."""

import dataclasses

import torch
import torch.distributed as dist

from torch_tutti import _C
from torch_tutti.errors import UsageError


@dataclasses.dataclass
class Options:
    """The pg_options of init_process_group() and new_group(). Every rank must pass the same."""

    backend: str = "auto"
    """The backend of the communicator: "auto" (shared memory inside a node, TCP between nodes), "tcp",
    "shared_memory", "hierarchical". "auto" uses the variable TUTTI_BACKEND if it is set."""


def _create(group, options):
    if options is None:
        options = Options()
    if not isinstance(options, Options):
        raise UsageError(f"pg_options of the backend tutti are torch_tutti.Options, not {type(options).__name__}")
    enable_reconfigure = getattr(group, "enable_reconfigure", False)  # PyTorch 2.15
    return _C.create_backend(
        group.store, group.group_rank, group.group_size, group.timeout, options.backend, enable_reconfigure
    )


_accelerator = torch.accelerator.current_accelerator()
_devices = ["cpu"] if _accelerator is None else ["cpu", _accelerator.type]
dist.Backend.register_backend("tutti", _create, extended_api=True, devices=_devices)


def communicator_of(group):
    """Returns the communicator of a process group. Raises UsageError if the group is not over tutti."""
    if not dist.is_initialized():
        raise UsageError('there is no process group: call torch.distributed.init_process_group("tutti") first')
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise UsageError("this rank is not in the process group: call this on the ranks that new_group() names")
    backend = (group or dist.group.WORLD)._get_backend(torch.device("cpu"))
    backend = getattr(backend, "wrapped_pg", backend)  # under TORCH_DISTRIBUTED_DEBUG=DETAIL
    communicator = _C.communicator_of(backend)
    if communicator is None:
        raise UsageError(
            f'this process group is over {backend.name()}, not over tutti: make one with init_process_group("tutti") or '
            'new_group(backend="tutti")'
        )
    return communicator


def backend_name(group=None):
    """Returns the backend of a process group's communicator, for example "shared memory + tcp"."""
    return communicator_of(group).backend_name
