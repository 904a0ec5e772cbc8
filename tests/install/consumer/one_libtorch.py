"""one_libtorch.py MODULE PROGRAM: PyTorch and a library that uses tutti share this Python's LibTorch.

Loads MODULE beside `import torch`, trains in it, and counts the copies of LibTorch in this process. Then runs PROGRAM and
looks where its LibTorch came from.
"""
import ctypes
import os
import subprocess
import sys

import torch

module, program = sys.argv[1:]
libraries = os.path.realpath(os.path.join(torch.__path__[0], "lib"))


def loaded(name):
    with open("/proc/self/maps") as maps:
        return {os.path.realpath(line.split()[-1]) for line in maps if line.rstrip().endswith("/" + name)}


consumer = ctypes.CDLL(module)
consumer.consumer_train.restype = ctypes.c_double
loss = consumer.consumer_train()
assert loss >= 0 and torch.ones(3).sum().item() == 3, loss
for name in ("libtorch_cpu.so", "libc10.so"):
    assert loaded(name) == {os.path.join(libraries, name)}, (name, loaded(name))

said = subprocess.run([program], check=True, capture_output=True, text=True).stdout
path = os.path.realpath(said.split("LibTorch: ")[1].strip())
assert path == os.path.join(libraries, "libtorch_cpu.so"), said
print(f"one LibTorch {torch.__version__}: {libraries}")
