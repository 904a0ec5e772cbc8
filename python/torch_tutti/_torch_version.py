"""C++ interfaces change between minor releases of torch: whether the one that is there is the right one."""

from torch_tutti import _build


def why_not(torch_version):
    """Why this package cannot be used with that release of torch; None where it can."""
    minor = ".".join(torch_version.split("+")[0].split(".")[:2])
    if minor == _build.torch_minor:
        return None
    return (
        f"torch_tutti {_build.version} was built for torch {_build.torch_minor}, but torch {torch_version} is installed: "
        f"install torch {_build.torch_minor}, or a torch_tutti that was built for torch {minor} (./dev wheel makes one)"
    )


def check():
    """Raises ImportError where torch is another one, or cannot do it."""
    import torch

    problem = why_not(torch.__version__)
    if problem:
        raise ImportError(problem)
    if not torch.distributed.is_available():
        raise ImportError("torch_tutti needs torch.distributed, which this torch was built without")
