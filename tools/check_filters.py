#!/usr/bin/env python3
"""Checks that every test that the docs name exists: GoogleTest runs no test, and succeeds, under a filter that
matches nothing.

    tools/check_filters.py build        # asks the programs in build/tests for their tests

Looks at tables. A filter in backquotes (`Suite.Case*`) belongs to the test program that was named last in its line; without
one, any program may have it. Prints file:line for what is not found, and exits with 1.
"""
import fnmatch
import re
import subprocess
import sys
from pathlib import Path

DOCUMENTS = ["docs/comparison.md", "docs/tested.md", "docs/loops.md", "docs/gradients.md"]
WORD = re.compile(r"\b(test_[a-z_]+)\b(?!\.py)|`((?:\*|[A-Z])[\w/*]*\.[\w/*]*|\*[\w/]+\*)`")
NO_TESTS = (".md", ".txt", ".cpp", ".h", ".json")


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


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    root = Path(__file__).resolve().parent.parent
    programs = sorted(path for path in (Path(sys.argv[1]) / "tests").glob("test_*") if path.is_file())
    tests = {path.name: tests_of(path.resolve()) for path in programs}
    errors = []
    for document in DOCUMENTS:
        for number, line in enumerate((root / document).read_text().splitlines(), 1):
            if not line.startswith("|"):
                continue
            # Accelerate's own tests are in the first column of their table.
            cells = line.split("|")[2:] if re.match(r"\| test_\w+\.py", line) else [line]
            errors += [f"{document}:{number}: no {what}" for what in missing_in("|".join(cells), tests)]
    print("\n".join(errors), file=sys.stderr, end="\n" if errors else "")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
