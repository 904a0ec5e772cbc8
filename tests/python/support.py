"""Runs the cases of a script one after another, on all ranks of one job over the backend tutti."""

import datetime
import os
import sys
import traceback

import torch
import torch.distributed as dist

import torch_tutti

_cases = []


def case(function):
    """One test. Every rank runs it; a rank that fails ends the script."""
    _cases.append(function)
    return function


def rank():
    return dist.get_rank()


def size():
    return dist.get_world_size()


def run(timeout=60):
    """Joins the job and runs the cases, or those whose names are arguments."""
    torch.set_num_threads(1)
    dist.init_process_group("tutti", timeout=datetime.timedelta(seconds=timeout))
    chosen = [one for one in _cases if one.__name__ in sys.argv[1:]] or _cases
    for one in chosen:
        try:
            torch.manual_seed(1)
            one()
        except BaseException:
            traceback.print_exc()
            print(f"FAILED {one.__name__} on rank {rank()}", flush=True)
            os._exit(1)
        if rank() == 0:
            print(f"ok {one.__name__}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    return len(chosen)


def same_bits(a, b, what=""):
    assert a.dtype == b.dtype and a.shape == b.shape, f"{what}: {a.dtype} {a.shape} beside {b.dtype} {b.shape}"
    assert torch.equal(a, b), f"{what}: {a} is not {b}"


def expect(error, part, function, *arguments, **keywords):
    """Expects that `function` raises `error` with a message that contains `part`. Returns the error."""
    try:
        function(*arguments, **keywords)
    except error as raised:
        assert part in str(raised), f"{part!r} is not in: {raised}"
        return raised
    raise AssertionError(f"{error} was not raised")
