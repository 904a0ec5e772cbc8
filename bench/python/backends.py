"""Compares torch.distributed's Gloo with the backend tutti, alternating in one run:

    ./dev python_bench              # 2 ranks; RANKS=4 ./dev python_bench

Prints the median and, in brackets, the smallest and the largest of the repeats; ratios are those to the fastest row of
Gloo. PyTorch's DistributedDataParallel has gradients as views of its buckets and a static graph, and over Gloo three sizes
of buckets. Every rank computes with one thread.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist

import torch_tutti

parser = argparse.ArgumentParser()
parser.add_argument("--repeats", type=int, default=9)
parser.add_argument("--seconds", type=float, default=0.3, help="approximate time of each measurement")
options = parser.parse_args()


def layers():
    """A model with 25 MB of gradients in the shapes of a small transformer."""
    torch.manual_seed(1)
    blocks = [torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 512)) for _ in range(6)]
    return torch.nn.Sequential(*blocks)


def timed(function, count):
    """Seconds of one of `count` calls on the slowest rank."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(count):
        function()
    seconds = torch.tensor([(time.perf_counter() - start) / count], dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds.item()


def calibrated(function):
    """The number of calls that take about the time of a measurement, equal on all ranks."""
    function()
    return max(1, min(1000, int(options.seconds / max(timed(function, 2), 1e-6))))


def contest(title, unit, contestants):
    counts = {name: calibrated(function) for name, function in contestants.items()}
    seconds = {name: [] for name in contestants}
    for _ in range(options.repeats):
        for name, function in contestants.items():
            seconds[name].append(timed(function, counts[name]))
    if dist.get_rank() != 0:
        return
    gloo = min(statistics.median(values) for name, values in seconds.items() if "Gloo" in name)
    print(title)
    for name, values in seconds.items():
        middle = statistics.median(values)
        spread = f"({min(values) * unit[0]:.2f}-{max(values) * unit[0]:.2f})"
        times = f"{gloo / middle:.2f} times as fast, {middle / gloo:.2f} of its time"
        print(f"  {name:36} {middle * unit[0]:9.2f} {unit[1]} {spread:18} {times}", flush=True)


def sums(gloo):
    for title, count, unit in (
        ("all_reduce of 4 KiB", 1 << 10, (1e6, "us")),
        ("all_reduce of 1 MiB", 1 << 18, (1e3, "ms")),
        ("all_reduce of 25 MiB", 25 << 18, (1e3, "ms")),
    ):
        tensors = [torch.zeros(count) for _ in range(2)]
        contest(
            title,
            unit,
            {
                "Gloo": lambda: dist.all_reduce(tensors[0], group=gloo),
                "tutti": lambda: dist.all_reduce(tensors[1]),
            },
        )


def steps(gloo):
    data = torch.randn(16, 512)

    def step_of(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

        def step():
            model(data).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    def torch_ddp(bucket_mib, group=None):
        return torch.nn.parallel.DistributedDataParallel(
            layers(), process_group=group, bucket_cap_mb=bucket_mib, gradient_as_bucket_view=True, static_graph=True
        )

    contestants = {f"PyTorch's DDP over Gloo, {mib} MiB": step_of(torch_ddp(mib, gloo)) for mib in (1, 4, 25)}
    contestants["PyTorch's DDP over tutti, 25 MiB"] = step_of(torch_ddp(25))
    contestants["torch_tutti's DDP"] = step_of(torch_tutti.DistributedDataParallel(layers()))
    contestants["no exchange"] = step_of(layers())
    contest("a step with 25 MB of gradients", (1e3, "ms"), contestants)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("tutti")
    gloo = dist.new_group(backend="gloo")
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, {torch_tutti.backend_name()}, torch {torch.__version__}", flush=True)
    sums(gloo)
    steps(gloo)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
