"""Checks the version of torch, because C++ interfaces change between its minor releases."""

from torch_tutti import _build


def why_not(torch_version):
    """Returns the reason why this package cannot be used with that release of torch, or None."""
    minor = ".".join(torch_version.split("+")[0].split(".")[:2])
    if minor == _build.torch_minor:
        return None
    return (
        f"torch_tutti {_build.version} was built for torch {_build.torch_minor}, but torch {torch_version} is installed: "
        f"install torch {_build.torch_minor}, or a torch_tutti that was built for torch {minor} (./dev wheel makes one)"
    )


def check():
    """Raises ImportError if torch has another version, or no torch.distributed."""
    import torch

    problem = why_not(torch.__version__)
    if problem:
        raise ImportError(problem)
    if not torch.distributed.is_available():
        raise ImportError("torch_tutti needs torch.distributed, which this torch was built without")
