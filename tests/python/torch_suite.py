"""PyTorch's own distributed suite, which its wheel carries, over a backend: BACKEND=tutti (or gloo), WORLD_SIZE=2 or 3.

    BACKEND=tutti WORLD_SIZE=2 python tests/python/torch_suite.py [--list FILE] [test names]

Runs each case in processes of its own, forked from this one, and prints what failed and the counts. --list writes a line
for each case: its name and passed, failed or skipped.
"""

import argparse
import importlib.util
import os
import sys
import tempfile
import time
import unittest

parser = argparse.ArgumentParser()
parser.add_argument("--list")
parser.add_argument("--slice", default="1/1", help="2/4: the second quarter of the cases")
parser.add_argument("names", nargs="*")
arguments = parser.parse_args()
backend = os.environ.setdefault("BACKEND", "tutti")
os.environ.setdefault("WORLD_SIZE", "2")
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
folder = tempfile.TemporaryDirectory()
os.environ["TEMP_DIR"] = folder.name
os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "60")  # of a case, in seconds

import torch  # noqa: E402

torch.set_num_threads(1)
import torch_tutti  # noqa: E402,F401
from torch.testing._internal import common_distributed  # noqa: E402

for feature in ("ddp", "subgroup", "gpu", "plugin"):
    common_distributed.DistTestCases.backend_feature[feature].add("tutti")

# The suite selects cases by the backend's name. Adds tutti to its lists: where the suite lists Gloo it means a backend for
# CPU memory, and where it lists MPI, a backend with all_to_all for CPU memory.
asked = {
    'BACKEND != "gloo"': 'BACKEND not in ("gloo", "tutti")',
    'BACKEND == "gloo"': 'BACKEND in ("gloo", "tutti")',
    'BACKEND != "mpi"': 'BACKEND not in ("mpi", "tutti")',
    'require_backend_is_available({"gloo"})': 'require_backend_is_available({"gloo", "tutti"})',
    "    dist.Backend.GLOO,\n": '    dist.Backend.GLOO, "tutti",\n',
    # tutti's message for the timeout of a barrier is different.
    '" (Timed out|closed|timeout) "': '" (Timed out|closed|timeout|did not enter the call within) "',
    # PyTorch's DistributedDataParallel logs every third-party backend by this name.
    'ddp_logging_data.get("backend_name"), dist.get_backend(group_id)': 'ddp_logging_data.get("backend_name"), '
    '"custom" if BACKEND == "tutti" else dist.get_backend(group_id)',
}


def suite_of_pytorch():
    """PyTorch's module, whose conditions include tutti."""
    spec = importlib.util.find_spec("torch.testing._internal.distributed.distributed_test")
    source = spec.loader.get_source(spec.name)
    for question, with_tutti in asked.items():
        assert question in source, f"this release of PyTorch's suite does not ask {question!r}"
        source = source.replace(question, with_tutti)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    exec(compile(source, spec.origin, "exec"), module.__dict__)
    return module


distributed_test = suite_of_pytorch()


class TestDistributed(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._fork_processes()

    def _fork_processes(self):
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


class Listed(unittest.TextTestResult):
    def __init__(self, *words, **options):
        super().__init__(*words, **options)
        self.passed, self.lines = [], []

    def _note(self, test, how):
        self.lines.append(f"{test._testMethodName} {how}")
        print(f"{self.lines[-1]} ({time.monotonic() - self.began:.1f} s)", flush=True)

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed.append(test)
        self._note(test, "passed")

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self._note(test, "failed")

    def addError(self, test, error):
        super().addError(test, error)
        self._note(test, "failed")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._note(test, "skipped")


def main():
    names = arguments.names or unittest.TestLoader().getTestCaseNames(TestDistributed)
    part, parts = (int(word) for word in arguments.slice.split("/"))
    names = names[len(names) * (part - 1) // parts : len(names) * part // parts]
    suite = unittest.TestSuite(TestDistributed(name) for name in names)
    start = time.monotonic()
    with open(os.devnull, "w") as nowhere:
        result = unittest.TextTestRunner(stream=nowhere, resultclass=Listed).run(suite)
    for test, text in result.failures + result.errors:
        print(f"\n== {test._testMethodName}\n" + "\n".join(text.splitlines()[-25:]))
    failed = len(result.failures) + len(result.errors)
    print(
        f"{backend}, {os.environ['WORLD_SIZE']} ranks: {len(result.passed)} passed, {failed} failed, "
        f"{len(result.skipped)} skipped of {result.testsRun} in {time.monotonic() - start:.0f} s"
    )
    if arguments.list:
        with open(arguments.list, "w") as file:
            file.write("\n".join(sorted(result.lines)) + "\n")
    sys.stdout.flush()
    os._exit(1 if failed else 0)


if __name__ == "__main__":
    main()
