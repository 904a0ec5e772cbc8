"""The exceptions of tutti. Each message says what happened, on which rank, in which operation, and what to do."""

import builtins

import torch.distributed as dist


class Error(RuntimeError):
    """Base class of tutti's exceptions."""


class UsageError(Error):
    """The program made an invalid call. No state was changed; fix the program."""


class MismatchError(Error, dist.DistBackendError):
    """Ranks made different calls, or calls with different arguments. Raised on every rank of the group."""


class PeerError(Error, dist.DistBackendError):
    """Another rank exited, aborted or timed out. `ranks` has the failed ranks, as far as they are known."""

    ranks: tuple[int, ...] = ()


class TimeoutError(PeerError, builtins.TimeoutError):
    """The ranks in `ranks` did not enter the call before the deadline."""


# The classes are exported by the package.
for _class in (Error, UsageError, MismatchError, PeerError, TimeoutError):
    _class.__module__ = "torch_tutti"
