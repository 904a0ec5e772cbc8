"""The table of `tutti bench sync` for PyTorch DDP and Hugging Face Accelerate: the same model, batches and loop.

Both are tuned: a fused AdamW, gradients as views of buckets, and the bucket cap that is the fastest of a scan with
no_sync.

Run it as every rank of a job (by `tutti launch` or torchrun). Rank 0 writes its figures to --results. The model is that
of examples/gpt/model.h without learned positions and final norm.
"""

import argparse
import contextlib
import json
import os
import sys
import time

import accelerate
import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate.data_loader import DataLoaderShard
from accelerate.state import AcceleratorState, GradientState
from torch import nn

HEADS = 4
LEARNING_RATE = 1e-3
WARM_UP_WINDOWS = 4
CAPS = (1, 4, 25)  # of DDP's buckets, in MiB
SCANS = 2


def parse_options():
    parser = argparse.ArgumentParser()
    for name, default in dict(batches=29, steps=4, batch_size=4, repeats=3, width=256, layers=6, context=64,
                              vocabulary=4096).items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=default)
    parser.add_argument("--results", required=True)
    return parser.parse_args()


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x):
        parts = self.query_key_value(self.attention_norm(x)).chunk(3, -1)
        by_head = [part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts]
        mixed = F.scaled_dot_product_attention(*by_head, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).flatten(2))
        return x + self.contract(F.gelu(self.expand(self.feed_forward_norm(x))))


class Gpt(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.embedding = nn.Embedding(options.vocabulary, options.width)
        self.blocks = nn.ModuleList(Block(options.width) for _ in range(options.layers))
        self.head = nn.Linear(options.width, options.vocabulary)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def loss_of(model, tokens):
    return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


class Work:
    """The batches of this rank; makes a fresh model in each call."""

    def __init__(self, options):
        self.options = options
        self.steps = options.steps
        self.cap = CAPS[-1]
        self.warm_up = self.batches(WARM_UP_WINDOWS * options.steps, seed=1)
        self.timed = self.batches(options.batches, seed=2)

    def batches(self, count, seed):
        generator = torch.Generator().manual_seed(seed * dist.get_world_size() + dist.get_rank())
        shape = (self.options.batch_size, self.options.context)
        return [torch.randint(self.options.vocabulary, shape, generator=generator) for _ in range(count)]

    def windows(self, batches):
        """Yields each batch, and whether an optimizer step follows."""
        for i, tokens in enumerate(batches, start=1):
            yield tokens, i % self.steps == 0 or i == len(batches)

    def model(self):
        torch.manual_seed(0)
        return Gpt(self.options)


def train(work, mode, batches, model, optimizer, backward, no_sync):
    """Trains one epoch; `mode` is the placement of no_sync."""
    for tokens, ends_window in work.windows(batches):
        quiet = contextlib.nullcontext if ends_window else no_sync
        with quiet() if mode == "no_sync" else contextlib.nullcontext():
            loss = loss_of(model, tokens) / work.steps
            with quiet() if mode == "no_sync misplaced" else contextlib.nullcontext():
                backward(loss)
        if ends_window:
            optimizer.step()
            optimizer.zero_grad()


def adamw(model):
    return torch.optim.AdamW(model.parameters(), LEARNING_RATE, fused=True)


def ddp_trainer(work, mode):
    model = nn.parallel.DistributedDataParallel(work.model(), gradient_as_bucket_view=True, bucket_cap_mb=work.cap)
    optimizer = adamw(model)
    return model, lambda batches: train(work, mode, batches, model, optimizer, torch.Tensor.backward, model.no_sync)


def accelerate_trainer(work, mode):
    # All Accelerators of a process share both. After one that ended inside a window the next would skip steps.
    GradientState._reset_state()
    AcceleratorState._reset_state()
    tuned = accelerate.DistributedDataParallelKwargs(gradient_as_bucket_view=True, bucket_cap_mb=work.cap)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=work.steps if mode == "accumulate" else 1,
                                         kwargs_handlers=[tuned])
    model = work.model()
    model, optimizer = accelerator.prepare(model, adamw(model))

    def train_in_windows(batches):
        # Accelerate's loader reports the end of the last, short window to accumulate().
        for tokens in DataLoaderShard(batches, batch_size=None):
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, tokens))
                optimizer.step()
                optimizer.zero_grad()

    def train_with_steps(batches):
        train(work, mode, batches, model, optimizer, accelerator.backward, lambda: accelerator.no_sync(model))

    return model, train_in_windows if mode == "accumulate" else train_with_steps


def measure(work, trainer):
    """Milliseconds per batch of a fresh training, without the warm-up, and the errors in its result."""
    model, train_on = trainer
    train_on(work.warm_up)
    dist.barrier()
    start = time.perf_counter()
    train_on(work.timed)
    dist.barrier()
    elapsed = 1e3 * (time.perf_counter() - start) / len(work.timed)

    mine = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    first = mine.clone()
    dist.broadcast(first, 0)
    differs = torch.tensor(float(not torch.equal(mine, first)))
    dist.all_reduce(differs)
    return elapsed, bool(differs)


def find_cap(work):
    """The fastest bucket cap of DDP, equal on all ranks. The first run is a warm-up and is not counted."""
    measure(work, ddp_trainer(work, "no_sync"))
    fastest = torch.full((len(CAPS),), float("inf"))
    for _ in range(SCANS):
        for i, work.cap in enumerate(CAPS):
            elapsed, _ = measure(work, ddp_trainer(work, "no_sync"))
            fastest[i] = min(fastest[i].item(), elapsed)
    dist.broadcast(fastest, 0)
    return CAPS[fastest.argmin().item()]


SYSTEMS = {
    "PyTorch DDP": (ddp_trainer, ("baseline", "no_sync misplaced", "no_sync")),
    "Accelerate": (accelerate_trainer, ("baseline", "no_sync misplaced", "no_sync", "accumulate")),
}


def main():
    options = parse_options()
    torch.set_num_threads(1)
    os.environ["ACCELERATE_USE_CPU"] = "1"
    dist.init_process_group("gloo")
    work = Work(options)

    entries = [(system, mode) for system, (_, modes) in SYSTEMS.items() for mode in modes]
    figures = {entry: [] for entry in entries}
    faults = []
    work.cap = find_cap(work)
    for repeat in range(options.repeats):
        for system, mode in entries if repeat % 2 == 0 else reversed(entries):
            elapsed, differs = measure(work, SYSTEMS[system][0](work, mode))
            figures[system, mode].append(elapsed)
            if differs:
                faults.append(f"{system} {mode}: the ranks ended with different parameters")
            if dist.get_rank() == 0:
                print(f"{repeat + 1}/{options.repeats} {system + ' ' + mode:31} {elapsed:8.1f} ms per batch", file=sys.stderr)

    if dist.get_rank() == 0:
        settings = (f"AdamW with fused=True, gradient_as_bucket_view, buckets of {work.cap} MiB (with no_sync the fastest of "
                    "1, 4 and 25)")
        size = sum(parameter.nbytes for parameter in work.model().parameters())
        rows = [dict(labels=dict(system=system, mode=mode, bytes=size, own_processes=True), values=taken, settings=settings)
                for (system, mode), taken in figures.items()]
        with open(options.results, "w") as file:
            json.dump(dict(rows=rows, notes=[], faults=sorted(set(faults))), file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
