"""BERT for sentence pairs, for `tutti bench nlp`: the model, the data, and training by PyTorch and Accelerate.

    nlp_peer.py export FOLDER ...    writes bert.pt2, with random weights, and batches.safetensors, those of all ranks
    nlp_peer.py serve FOLDER BACKEND RANK SIZE ...   one rank, which runs the commands from its standard input:

        join HOST PORT      joins the group over BACKEND (gloo or tutti) through the store at HOST:PORT
        tune                searches for the fastest bucket cap of PyTorch's DDP
        train FILE SYSTEM, MODE     trains a fresh model and writes its parameters after the warm-up to FILE.warm, at
                                    the end to FILE.end (safetensors)

It answers each line with one on standard output: "ok", the cap in MiB, milliseconds per batch.
"""

import argparse
import contextlib
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

LEARNING_RATE = 1e-4
WARM_UP_WINDOWS = 4  # buckets are rebuilt after the first window, and the automatic policy learns in three
CAPS = (1, 4, 25)  # of DDP's buckets, in MiB
FIRST, SEPARATOR, WORDS = 101, 102, 1000  # in BERT's vocabulary; tokens from WORDS on are words
PytorchDdp = torch.nn.parallel.DistributedDataParallel


def parse_options():
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("export", "serve"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("backend", nargs="?", default="")
    parser.add_argument("rank", nargs="?", type=int, default=0)
    parser.add_argument("size", nargs="?", type=int, default=1)
    for name in ("batches", "steps", "batch_size", "width", "layers", "context", "vocabulary", "ranks"):
        parser.add_argument("--" + name.replace("_", "-"), type=int, required=True)
    return parser.parse_args()


# The model and the data.


def make_model(options):
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=options.vocabulary,
        hidden_size=options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=max(1, options.width // 64),
        intermediate_size=4 * options.width,
        num_labels=2,
    )
    return BertForSequenceClassification(config).train()


def sentence_pairs(options, rows, seed):
    """Pairs of sentences, padded. The second has the words of the first in another order, or other words."""
    generator = torch.Generator().manual_seed(seed)

    def number(low, high):
        return int(torch.randint(low, high, (), generator=generator))

    length = options.context
    pairs = {name: torch.zeros(rows, length, dtype=torch.long) for name in ("input_ids", "token_type_ids", "attention_mask")}
    pairs["labels"] = torch.zeros(rows, dtype=torch.long)
    first_word = min(WORDS, options.vocabulary // 2)
    for row in range(rows):
        words = number(max(1, (length - 3) // 4), (length - 3) // 2 + 1)
        one = torch.randint(first_word, options.vocabulary, (words,), generator=generator)
        same = number(0, 2)
        other = torch.randint(first_word, options.vocabulary, (words,), generator=generator)
        two = one[torch.randperm(words, generator=generator)] if same else other
        special = [torch.tensor([token % options.vocabulary]) for token in (FIRST, SEPARATOR)]
        tokens = torch.cat([special[0], one, special[1], two, special[1]])
        pairs["input_ids"][row, : len(tokens)] = tokens
        pairs["token_type_ids"][row, words + 2 : len(tokens)] = 1
        pairs["attention_mask"][row, : len(tokens)] = 1
        pairs["labels"][row] = same
    return pairs


def export(options):
    model = make_model(options)
    batch = torch.export.Dim("batch", max=1024)
    sample = sentence_pairs(options, 2, 0)
    program = torch.export.export(model, (), sample, dynamic_shapes={name: {0: batch} for name in sample})
    torch.export.save(program, options.folder / "bert.pt2")
    content = {}
    for part, count in (("warm_up", WARM_UP_WINDOWS * options.steps), ("timed", options.batches)):
        pairs = sentence_pairs(options, count * options.batch_size * options.ranks, 1 + len(content))
        content.update({f"{part}.{name}": tensor for name, tensor in pairs.items()})
    save_file(content, options.folder / "batches.safetensors")


# The training.


class Work:
    """The batches of this rank; makes a fresh model in each call."""

    def __init__(self, options):
        self.options = options
        self.steps = options.steps
        self.cap = CAPS[-1]
        self.rows = load_file(options.folder / "batches.safetensors")
        self.warm_up, self.timed = self.batches("warm_up"), self.batches("timed")

    def batches(self, part):
        """Batches in the order of DistributedSampler."""
        mine = {key.removeprefix(part + "."): rows[self.options.rank :: self.options.size].contiguous()
                for key, rows in self.rows.items() if key.startswith(part + ".")}
        count = len(mine["labels"]) // self.options.batch_size
        parts = {name: rows.split(self.options.batch_size) for name, rows in mine.items()}
        return [{name: rows[i] for name, rows in parts.items()} for i in range(count)]

    def model(self):
        return make_model(self.options)


def windows(work, batches):
    """Yields each batch, and whether an optimizer step follows."""
    for i, batch in enumerate(batches, start=1):
        yield batch, i % work.steps == 0 or i == len(batches)


def train(work, mode, batches, model, optimizer, backward, no_sync):
    """Trains one epoch; `mode` is the placement of no_sync."""
    for batch, ends_window in windows(work, batches):
        quiet = contextlib.nullcontext if ends_window else no_sync
        with quiet() if mode == "no_sync" else contextlib.nullcontext():
            loss = model(**batch).loss / work.steps
            with quiet() if mode == "no_sync misplaced" else contextlib.nullcontext():
                backward(loss)
        if ends_window:
            optimizer.step()
            optimizer.zero_grad()


def adamw(model):
    """AdamW as a loop over parameters, like LibTorch's in C++."""
    return torch.optim.AdamW(model.parameters(), LEARNING_RATE, foreach=False, fused=False)


def alone(work, mode):
    model = work.model()
    optimizer = adamw(model)
    return model, lambda batches: train(work, mode, batches, model, optimizer, torch.Tensor.backward, contextlib.nullcontext)


def with_ddp(work, mode):
    model = work.model()
    ddp = PytorchDdp(model, gradient_as_bucket_view=True, bucket_cap_mb=work.cap)
    optimizer = adamw(ddp)
    return model, lambda batches: train(work, mode, batches, ddp, optimizer, torch.Tensor.backward, ddp.no_sync)


def with_torch_tutti(work, mode):
    import torch_tutti

    model = work.model()
    ddp = torch_tutti.DistributedDataParallel(model, windows="every_pass" if mode == "baseline" else "automatic")
    optimizer = adamw(ddp)
    return model, lambda batches: train(work, mode, batches, ddp, optimizer, torch.Tensor.backward, ddp.no_sync)


def with_accelerate(work, mode):
    import accelerate
    from accelerate.data_loader import DataLoaderShard
    from accelerate.state import AcceleratorState, GradientState

    # All Accelerators of a process share both. After one that ended inside a window the next would skip steps.
    GradientState._reset_state()
    AcceleratorState._reset_state()
    tuned = accelerate.DistributedDataParallelKwargs(gradient_as_bucket_view=True, bucket_cap_mb=work.cap)
    accelerator = accelerate.Accelerator(
        cpu=True,
        gradient_accumulation_steps=work.steps if mode == "accumulate" else 1,
        # torch_tutti's DDP has its own buckets.
        kwargs_handlers=[tuned] if torch.nn.parallel.DistributedDataParallel is PytorchDdp else [],
    )
    model = work.model()
    prepared, optimizer = accelerator.prepare(model, adamw(model))

    def train_in_windows(batches):
        # Accelerate's loader reports the end of the last, short window to accumulate(). A separate generator does not
        # change the dropout's.
        for batch in DataLoaderShard(batches, batch_size=None, generator=torch.Generator()):
            with accelerator.accumulate(prepared):
                accelerator.backward(prepared(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()

    def train_with_steps(batches):
        train(work, mode, batches, prepared, optimizer, accelerator.backward, lambda: accelerator.no_sync(prepared))

    return model, train_in_windows if mode == "accumulate" else train_with_steps


@contextlib.contextmanager
def in_the_place_of_pytorchs():
    """Calls torch_tutti.accelerate(), and restores PyTorch's DDP afterwards."""
    import torch_tutti

    torch_tutti.accelerate()
    try:
        yield
    finally:
        torch.nn.parallel.DistributedDataParallel = PytorchDdp


SYSTEMS = {
    "none in Python": (alone, contextlib.nullcontext),
    "PyTorch DDP": (with_ddp, contextlib.nullcontext),
    "Accelerate": (with_accelerate, contextlib.nullcontext),
    "torch_tutti": (with_torch_tutti, contextlib.nullcontext),
    "Accelerate with torch_tutti": (with_accelerate, in_the_place_of_pytorchs),
}


def measure(work, system, mode, file=None):
    """Milliseconds per batch of a fresh training, without the warm-up."""
    trainer, scope = SYSTEMS[system]

    def leave(model, name):
        if file:
            save_file({key: parameter.detach() for key, parameter in model.named_parameters()}, f"{file}.{name}")

    with scope():
        model, train_on = trainer(work, mode)
        torch.manual_seed(1 + dist.get_rank())  # the dropout seed of all systems
        train_on(work.warm_up)
        leave(model, "warm")
        dist.barrier()
        start = time.perf_counter()
        train_on(work.timed)
        dist.barrier()
        elapsed = 1e3 * (time.perf_counter() - start) / len(work.timed)
        leave(model, "end")
    return elapsed


def find_cap(work):
    """The fastest bucket cap of DDP, equal on all ranks. The first run is a warm-up and is not counted."""
    measure(work, "PyTorch DDP", "no_sync")
    taken = torch.zeros(len(CAPS))
    for i, work.cap in enumerate(CAPS):
        taken[i] = measure(work, "PyTorch DDP", "no_sync")
    dist.broadcast(taken, 0)
    work.cap = CAPS[taken.argmin().item()]
    return work.cap


def join(options, host, port):
    """Connects to the store of `tutti bench nlp`."""
    if options.backend == "tutti":
        import torch_tutti  # noqa: F401  (it registers the backend)
    store = dist.TCPStore(host, int(port), options.size, is_master=False, wait_for_workers=False)
    dist.init_process_group(options.backend, store=dist.PrefixStore("nlp/" + options.backend, store), rank=options.rank,
                            world_size=options.size)


def serve(options):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of libraries must not mix with the answers
    torch.set_num_threads(1)
    os.environ["ACCELERATE_USE_CPU"] = "1"
    work = Work(options)
    for line in sys.stdin:
        order, _, rest = line.strip().partition(" ")
        answer = "ok"
        if order == "join":
            join(options, *rest.split())
        elif order == "tune":
            answer = find_cap(work)
        else:
            file, _, what = rest.partition(" ")
            answer = measure(work, *what.split(", "), file)
        print(answer, file=answers, flush=True)
    dist.destroy_process_group()


def main():
    options = parse_options()
    export(options) if options.role == "export" else serve(options)


if __name__ == "__main__":
    main()
