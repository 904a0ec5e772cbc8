#!/usr/bin/env python3
"""Prints the tests that the last run of ctest skipped, and the reasons.

    tools/skipped_tests.py build        # reads build/Testing/Temporary/LastTest.log
    tools/skipped_tests.py --self-test
"""
import re
import sys
from pathlib import Path

CASE = re.compile(r"\[ RUN      \] (\S+)\n(.*?)^\[ +(SKIPPED|OK|FAILED) +\] \1(?:, where [^\n]*)? \(\d+ ms\)$", re.S | re.M)


def skipped_cases(log):
    """Returns the number of cases, and for each reason the names of skipped cases."""
    cases, reasons = 0, {}
    for name, text, end in CASE.findall(log):
        cases += 1
        if end != "SKIPPED":
            continue
        said = re.search(r": Skipped\n(.*?)\n*\Z", text, re.S)
        reason = " ".join(said.group(1).split()) if said else ""
        reasons.setdefault(reason or "no reason given", []).append(name)
    return cases, reasons


def report(log):
    cases, reasons = skipped_cases(log)
    count = sum(map(len, reasons.values()))
    lines = [f"{count} of {cases} cases were skipped{':' if count else '.'}"]
    for reason, names in sorted(reasons.items()):
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        lines.append(f"  {len(names)} ({shown}): {reason}")
    return "\n".join(lines)


def self_test():
    log = ("[ RUN      ] A.One\n[       OK ] A.One (3 ms)\n"
           "[ RUN      ] A.Two\n/a/b.cpp:7: Skipped\nno MPI\nhere\n\n[  SKIPPED ] A.Two (0 ms)\n"
           "[ RUN      ] B/C.Three/0\n/a/b.cpp:9: Skipped\n\n[  SKIPPED ] B/C.Three/0 (0 ms)\n"
           "[ RUN      ] A.Four\nwrong\n[  FAILED  ] A.Four (1 ms)\n")
    found = report(log)
    expected = ("2 of 4 cases were skipped:\n  1 (A.Two): no MPI here\n  1 (B/C.Three/0): no reason given")
    if found != expected:
        sys.exit(f"self-test: expected\n{expected}\nfound\n{found}")
    print("skipped_tests: 4 cases told apart")


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    elif len(sys.argv) == 2:
        print(report((Path(sys.argv[1]) / "Testing/Temporary/LastTest.log").read_text(errors="replace")))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
