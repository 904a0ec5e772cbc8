"""Hugging Face Accelerate over this DistributedDataParallel."""

import torch


def accelerate():
    """Puts torch_tutti.DistributedDataParallel where Accelerate builds and looks for PyTorch's.

    Call it once, before `Accelerator()`, after `init_process_group("tutti")`, whose group the Accelerator takes. Other
    code that asks for torch.nn.parallel.DistributedDataParallel afterwards gets this one too.
    """
    from torch_tutti._distributed_data_parallel import DistributedDataParallel

    torch.nn.parallel.DistributedDataParallel = DistributedDataParallel
