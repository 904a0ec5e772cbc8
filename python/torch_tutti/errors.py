"""What tutti raises. Each message says what happened, on which rank, in which operation, and what to do."""

import builtins

import torch.distributed as dist


class Error(RuntimeError):
    """Base of everything that tutti raises on purpose."""


class UsageError(Error):
    """The program asked for something that cannot be done. Nothing was changed; fix the program."""


class MismatchError(Error, dist.DistBackendError):
    """Ranks did different things where they must do the same. Raised on every rank that takes part."""


class PeerError(Error, dist.DistBackendError):
    """Another rank died, left, or gave up. `ranks` holds those at fault, as far as they are known."""

    ranks: tuple[int, ...] = ()


class TimeoutError(PeerError, builtins.TimeoutError):
    """A deadline passed before the ranks in `ranks` arrived."""


# Users find them in the package.
for _class in (Error, UsageError, MismatchError, PeerError, TimeoutError):
    _class.__module__ = "torch_tutti"
