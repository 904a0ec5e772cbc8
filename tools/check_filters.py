#!/usr/bin/env python3
"""Checks that every test that the docs and the tools name exists: GoogleTest runs no test, and succeeds, under a filter
that matches nothing.

    tools/check_filters.py build        # asks the programs in build/tests for their tests

In docs/ it looks at lines that name a program before a filter, and at the tables of DOCUMENTS. A filter in backquotes
(`Suite.Case*`) belongs to the test program that was named last in its line; without one, any program may have it. In tools it
looks at every filter of GoogleTest. Prints file:line for what is not found, and exits with 1.
"""
import fnmatch
import re
import subprocess
import sys
from pathlib import Path

import mutate

DOCUMENTS = ["comparison.md", "tested.md", "loops.md", "gradients.md"]
ROOT = Path(__file__).resolve().parent.parent
WORD = re.compile(r"\b(test_[a-z_]+)\b(?!\.py)|`((?:\*|[A-Z])[\w/*]*\.[\w/*]*|\*[\w/]+\*)`")
NO_TESTS = (".md", ".txt", ".cpp", ".h", ".json")
# The filters of a shell script: their test program, and the expression that finds them.
SCRIPTS = [
    ("dev", None, r"build/tests/(test_\w+) --gtest_filter='([^']+)'"),
    ("tools/sanitized_tests.sh", "test_comm", r"^core='([^']+)'"),
    ("tools/gpu/steps.sh", "test_gpu", r"^ *tests '[^']*' \d+ '([^']+)'"),
    ("tools/gpu/steps.sh", "test_gpu", r"--gtest_filter=([\w.*]+)"),
]


def tests_of(program):
    """Returns the full names of a program's tests."""
    listed = subprocess.run([program, "--gtest_list_tests"], check=True, capture_output=True, text=True).stdout
    names, suite = set(), ""
    for line in listed.splitlines():
        name = line.split("#")[0].strip()
        if line.startswith("  "):
            names.add(suite + name)
        elif name.endswith("."):
            suite = name
    return names


def missing_in(line, tests):
    """Returns the tests that a line names and that do not exist."""
    program, missing = None, []
    for named, pattern in WORD.findall(line):
        if named:
            program = named
            if program not in tests:
                missing.append(f"test program {program}")
        elif not pattern.endswith(NO_TESTS):
            known = tests.get(program) if program else set().union(*tests.values())
            if known is not None and not any(fnmatch.fnmatchcase(name, pattern) for name in known):
                missing.append(f"{pattern}" + (f" in {program}" if program else ""))
    return missing


def filters_of_tools():
    """Yields (place, program, filter)."""
    for script, program, expression in SCRIPTS:
        for number, line in enumerate((ROOT / script).read_text().splitlines(), 1):
            if match := re.search(expression, line):
                yield f"{script}:{number}", program or match[1], match[match.lastindex]
    for program, patterns in sorted({(fault.program, fault.tests) for fault in mutate.FAULTS}):
        yield "tools/mutate.py", program, patterns


def missing_in_filter(patterns, known):
    """Returns the parts of a filter that match no test. The part behind - must match one, too."""
    return [pattern for pattern in re.split("[:-]", patterns) if not any(fnmatch.fnmatchcase(name, pattern) for name in known)]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    programs = sorted(path for path in (Path(sys.argv[1]) / "tests").glob("test_*") if path.is_file())
    tests = {path.name: tests_of(path.resolve()) for path in programs}
    errors = []
    for document in sorted((ROOT / "docs").rglob("*.md")):
        for number, line in enumerate(document.read_text().splitlines(), 1):
            is_row = document.name in DOCUMENTS and line.startswith("|")
            if not is_row and not re.search(r"\btest_\w+ `", line):
                continue
            # Accelerate's own tests are in the first column of their table.
            cells = line.split("|")[2:] if re.match(r"\| test_\w+\.py", line) else [line]
            place = f"{document.relative_to(ROOT)}:{number}"
            errors += [f"{place}: no {what}" for what in missing_in("|".join(cells), tests)]
    for place, program, patterns in filters_of_tools():
        errors += [f"{place}: no {what} in {program}" for what in missing_in_filter(patterns, tests.get(program, ()))]
    print("\n".join(errors), file=sys.stderr, end="\n" if errors else "")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
