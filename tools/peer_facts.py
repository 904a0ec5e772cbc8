#!/usr/bin/env python3
"""Runs the evidence for docs/comparison.md on Accelerate and PyTorch DDP, on the CPU, over Gloo.

    .deps/peers/bin/python tools/peer_facts.py            # everything; ./dev peers makes that Python
    .deps/peers/bin/python tools/peer_facts.py NAME ...   # some of it
    tools/peer_facts.py --check                           # any Python: every cell of that page has a source

Prints a line for each: its name and the result. docs/comparison.md names the line behind each cell.
"""
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

if sys.argv[1:] != ["--check"]:
    import torch
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")


def accelerator(**options):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    return Accelerator(cpu=True, **options)


def line(inputs=1):
    model = torch.nn.Linear(inputs, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    return model


def loader(samples, **options):
    return DataLoader(TensorDataset(torch.ones(samples, 1)), **options)


# On one process.


def short_window():
    """6 micro-batches of gradient 1 in windows of 4: the gradients of the two steps."""
    a = accelerator(gradient_accumulation_steps=4)
    model = line()
    model, optimizer, data = a.prepare(model, torch.optim.SGD(model.parameters(), 0), loader(6))
    seen = []
    for (x,) in data:
        with a.accumulate(model):
            a.backward(model(x).sum())
            if a.sync_gradients:
                seen.append(model.weight.grad.item())
            optimizer.step()
            optimizer.zero_grad()
    return f"gradients of the windows of 4 and of 2 micro-batches: {seen}"


def nested_break():
    """An inner loader that is left by break: does the outer loop's last, short window still step?"""
    a = accelerator(gradient_accumulation_steps=2)
    model = line()
    model, optimizer, outer, inner = a.prepare(model, torch.optim.SGD(model.parameters(), 0), loader(3), loader(3))
    ends = {}
    for breaks in (False, True):
        ends[breaks] = []
        a.step = 0
        for (x,) in outer:
            for _ in inner:
                if breaks:
                    break
            with a.accumulate(model):
                a.backward(model(x).sum())
                ends[breaks].append(a.sync_gradients)
    return f"windows end at {ends[False]} without break, at {ends[True]} with"


def fp16_on_the_cpu():
    seen = []

    class Net(torch.nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            seen.append(y.dtype)
            return y

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        accelerator(mixed_precision="fp16").prepare(Net(1, 1))(torch.ones(1, 1))
    return f"the layer computes in {seen[0]}; warnings: {[str(one.message) for one in caught]}"


def schedule_adjustment():
    """Positions of a schedule after 4 micro-batches in windows of 2, with adjust_scheduler on and off."""
    from accelerate.utils import GradientAccumulationPlugin
    seen = {}
    for adjust in (True, False):
        a = accelerator(gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=2, adjust_scheduler=adjust))
        model = line()
        optimizer = torch.optim.SGD(model.parameters(), 1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda position: 1)
        model, optimizer, data, schedule = a.prepare(model, optimizer, loader(4), schedule)
        for (x,) in data:
            with a.accumulate(model):
                a.backward(model(x).sum())
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        seen[adjust] = schedule.scheduler._step_count
    return f"_step_count {seen[True]} with adjust_scheduler, {seen[False]} without"


def pending_gradients():
    """A checkpoint after 2 of 4 micro-batches, loaded by a new run."""
    with tempfile.TemporaryDirectory() as folder:
        seen = []
        for run in range(2):
            a = accelerator(gradient_accumulation_steps=4)
            model = line()
            model, optimizer, data = a.prepare(model, torch.optim.SGD(model.parameters(), 0), loader(4))
            if run == 1:
                a.load_state(folder)
                data = a.skip_first_batches(data, 2)
            for i, (x,) in enumerate(data):
                with a.accumulate(model):
                    a.backward(model(x).sum())
                    if a.sync_gradients:
                        seen.append(model.weight.grad.item())
                    optimizer.step()
                    optimizer.zero_grad()
                if run == 0 and i == 1:
                    a.save_state(folder)
        return f"gradient of the window: {seen[0]} without interruption, {seen[1]} after the resume"


def resume_order():
    """The order of the second epoch, uninterrupted and in a run that loads a checkpoint of the first epoch's end."""
    with tempfile.TemporaryDirectory() as folder:
        orders = []
        for run in range(2):
            a = accelerator()
            data = DataLoader(TensorDataset(torch.arange(8)), shuffle=True, generator=torch.Generator().manual_seed(3))
            model = line()
            model, optimizer, data = a.prepare(model, torch.optim.SGD(model.parameters(), 0), data)
            if run == 0:
                first = [int(x) for (x,) in data]
                a.save_state(folder)
            else:
                a.load_state(folder)
            orders.append([int(x) for (x,) in data])
        what = "the first epoch's again" if orders[1] == first else "another one"
        return f"second epoch: {'the same' if orders[0] == orders[1] else what} after load_state"


def names_after_resume():
    from accelerate.utils import ProjectConfiguration
    with tempfile.TemporaryDirectory() as folder:
        for run in range(2):
            a = accelerator(project_config=ProjectConfiguration(folder, automatic_checkpoint_naming=True))
            a.prepare(line())
            if run == 1:
                a.load_state()
            try:
                a.save_state()
            except ValueError as error:
                return f"the first save after a resume: ValueError: {str(error).split('(')[0].strip()}"
    return "the first save after a resume works"


def launch_on_the_cpu():
    program = "import os; print('world size', os.environ.get('WORLD_SIZE', 'not set'), flush=True)"
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(program)
        script.flush()
        said = subprocess.run([sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", script.name],
                              capture_output=True, text=True)
    return f"`accelerate launch --cpu --num_processes 2` prints {said.stdout.split(chr(10))[:-1]}"


# On two processes; rank 0 prints its result.


def both(value):
    """Returns the value of each rank."""
    values = [None, None]
    torch.distributed.all_gather_object(values, value)
    return values


def no_sync_misplaced():
    """no_sync() around backward alone: is the gradient the mean of both ranks (1.5)?"""
    model = DistributedDataParallel(line())
    loss = model(torch.tensor([[1.0 + torch.distributed.get_rank()]]))
    with model.no_sync():
        loss.sum().backward()
    return f"gradients of the ranks: {both(model.module.weight.grad.item())}"


def step_on_own_gradients():
    """A step while gradients differ between ranks."""
    model = DistributedDataParallel(line())
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    with model.no_sync():
        model(torch.tensor([[1.0 + torch.distributed.get_rank()]])).sum().backward()
    optimizer.step()
    return f"parameters of the ranks after the step: {both(model.module.weight.item())}, no error"


def different_models():
    try:
        DistributedDataParallel(torch.nn.Linear(1 + torch.distributed.get_rank(), 1))
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
    return "no error"


different_models.on_all_ranks = True


def join_on_gloo():
    """join_uneven_inputs over Gloo with 3 samples on 2 ranks."""
    a = accelerator()
    model = line()
    model, data = a.prepare(model, loader(3))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with a.join_uneven_inputs([model], even_batches=False):
            batches = sum(1 for _ in data)
    said = [str(one.message).splitlines()[0] for one in caught if "oin" in str(one.message)]
    return f"batches of the ranks: {both(batches)}; {said}"


def schedule_positions():
    """Positions that a schedule moves in one optimizer step on two processes."""
    a = accelerator()
    model = line()
    optimizer = torch.optim.SGD(model.parameters(), 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda position: 1)
    model, optimizer, schedule = a.prepare(model, optimizer, schedule)
    a.backward(model(torch.ones(1, 1)).sum())
    optimizer.step()
    before = schedule.scheduler.last_epoch
    schedule.step()
    return f"{schedule.scheduler.last_epoch - before} positions"


def dead_rank():
    """The other rank exits during the job."""
    tensor = torch.ones(1 << 20)
    torch.distributed.barrier()
    if torch.distributed.get_rank() == 1:
        os._exit(0)
    try:
        torch.distributed.all_reduce(tensor)
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
    return "no error"


ALONE = [short_window, nested_break, fp16_on_the_cpu, schedule_adjustment, pending_gradients, resume_order, names_after_resume,
         launch_on_the_cpu]
ON_TWO = [no_sync_misplaced, step_on_own_gradients, different_models, join_on_gloo, schedule_positions, dead_rank]


def on_two_processes(name):
    said = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", __file__, "--rank", name],
                          capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "1"})
    seen = sorted(one for one in said.stdout.splitlines() if one.startswith(name))
    return "\n".join(seen) if seen else f"{name}: {said.stderr[-300:]}"


def check(page):
    """Returns the cells about Accelerate and DDP without a source."""
    wrong, defined = [], set(re.findall(r"^\[([\w-]+)\]: http", page, re.M))
    for number, line in enumerate(page.splitlines(), 1):
        cells = re.split(r"(?<!\\)\|", line)[1:-1]
        if len(cells) != 5 or cells[1].strip() in ("Accelerate", "---"):
            continue
        for cell in filter(str.strip, cells[1:3]):
            facts = re.findall(r"F ([a-z]\w+)", cell)
            links = re.findall(r"\]\[([\w-]+)\]", cell)
            if not facts and not links:
                wrong.append(f"docs/comparison.md:{number}: no source for: {cell.strip()}")
            wrong += [f"docs/comparison.md:{number}: no address for [{link}]" for link in links if link not in defined]
            for fact in facts:
                if fact not in [test.__name__ for test in ALONE + ON_TWO]:
                    wrong.append(f"docs/comparison.md:{number}: tools/peer_facts.py has no {fact}")
                elif not re.search(rf"^    {fact}[:,]", page, re.M):
                    wrong.append(f"docs/comparison.md:{number}: what {fact} printed is not on the page")
    return wrong


def main(names):
    if names == ["--check"]:
        problems = check((Path(__file__).resolve().parent.parent / "docs" / "comparison.md").read_text())
        print("\n".join(problems), end="\n" if problems else "")
        sys.exit(1 if problems else 0)
    if names[:1] == ["--rank"]:
        torch.distributed.init_process_group("gloo")
        test = globals()[names[1]]
        seen, rank = test(), torch.distributed.get_rank()
        if getattr(test, "on_all_ranks", False):
            print(f"{names[1]}, rank {rank}: {seen}", flush=True)
            time.sleep(1)  # torchrun ends the other rank when the first one exits
        elif rank == 0:
            print(f"{names[1]}: {seen}", flush=True)
        os._exit(0)
    import accelerate
    print(f"Accelerate {accelerate.__version__}, PyTorch {torch.__version__}, Gloo on the CPU")
    for test in ALONE:
        if not names or test.__name__ in names:
            print(f"{test.__name__}: {test()}", flush=True)
    for test in ON_TWO:
        if not names or test.__name__ in names:
            print(on_two_processes(test.__name__), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
