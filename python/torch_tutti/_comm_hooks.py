"""Communication hooks of PyTorch as codecs of tutti."""

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from torch_tutti.errors import UsageError

_codecs = {
    default_hooks.allreduce_hook: "",
    default_hooks.fp16_compress_hook: "fp16",
    default_hooks.bf16_compress_hook: "bf16",
}


def codec_of(hook):
    """The codec that does what the hook does."""
    if hook in _codecs:
        return _codecs[hook]
    name = getattr(hook, "__qualname__", repr(hook))
    raise UsageError(
        f"register_comm_hook({name}): gradients can travel as fp16_compress_hook and bf16_compress_hook make them, and as "
        "they are (allreduce_hook). For other hooks use PyTorch's DistributedDataParallel, which runs over the backend "
        "tutti too"
    )
