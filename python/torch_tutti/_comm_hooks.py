"""Communication hooks of PyTorch as codecs of tutti."""

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, quantization_hooks

from torch_tutti.errors import UsageError

_codecs = {
    default_hooks.allreduce_hook: "",
    default_hooks.fp16_compress_hook: "fp16",
    default_hooks.bf16_compress_hook: "bf16",
    quantization_hooks.quantization_pertensor_hook: "int8",
    quantization_hooks.quantization_perchannel_hook: "int8",
}


def codec_of(hook):
    """Returns the codec that corresponds to the hook."""
    if hook in _codecs:
        return _codecs[hook]
    name = getattr(hook, "__qualname__", repr(hook))
    raise UsageError(
        f"register_comm_hook({name}): supported hooks are fp16_compress_hook, bf16_compress_hook, "
        "quantization_pertensor_hook, quantization_perchannel_hook and allreduce_hook. "
        "For other hooks use PyTorch's DistributedDataParallel, which also runs over the backend tutti"
    )
