"""A chain of small operators, which measures the overhead of running an operator.

    chain.py FILE.pt2 OPERATORS

Exports the chain, and then runs it eagerly for each line of standard input; the answer is the seconds of a pass forward
and of one forward and backward.
"""

import sys
import time

import torch


class Chain(torch.nn.Module):
    def __init__(self, operators):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((8,), 0.5))
        self.rounds = operators // 4

    def forward(self, x):
        y = x
        for _ in range(self.rounds):
            y = -torch.tanh(y * self.weight + x)
        return y


def seconds(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main(file, operators):
    torch.set_num_threads(1)
    chain, x = Chain(int(operators)), torch.ones(8)
    torch.export.save(torch.export.export(chain, (x,)), file)
    for _ in sys.stdin:
        with torch.no_grad():
            forward = seconds(lambda: chain(x))
        both = seconds(lambda: chain(x).sum().backward())
        print(forward, both, flush=True)


main(*sys.argv[1:])
