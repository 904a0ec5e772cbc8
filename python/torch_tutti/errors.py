"""What tutti raises. Each message says what happened, on which rank, in which operation, and what to do."""

import torch.distributed as dist


class Error(RuntimeError):
    """Base of everything that tutti raises on purpose."""


class UsageError(Error):
    """The program asked for something that cannot be done. Nothing was changed; fix the program."""


class Divergence(Error, dist.DistBackendError):
    """Ranks did different things where they must do the same. Raised on every rank that takes part."""


class PeerFailure(Error, dist.DistBackendError):
    """Another rank died, left, or gave up. `ranks` holds those at fault, as far as they are known."""

    ranks: tuple[int, ...] = ()


class Timeout(PeerFailure):
    """A deadline passed before the ranks in `ranks` arrived."""


# Users find them in the package.
for _class in (Error, UsageError, Divergence, PeerFailure, Timeout):
    _class.__module__ = "torch_tutti"
