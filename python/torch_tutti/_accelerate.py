"""Hugging Face Accelerate over this DistributedDataParallel."""

import torch


def accelerate():
    """Replaces torch.nn.parallel.DistributedDataParallel, which Accelerate uses, by torch_tutti's class.

    Call it once, after `init_process_group("tutti")` and before `Accelerator()`, which uses that group. Other code that
    looks up torch.nn.parallel.DistributedDataParallel afterwards gets torch_tutti's class too.
    """
    from torch_tutti._distributed_data_parallel import DistributedDataParallel

    torch.nn.parallel.DistributedDataParallel = DistributedDataParallel
