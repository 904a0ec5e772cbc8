#!/usr/bin/env python3
"""Checks docs/errors.md and docs/error_messages.md: they have every message that the sources throw, and only those.

    tools/errors.py --check       # prints what is missing or stale, and exits with 1
    tools/errors.py --write       # writes docs/error_messages.md again
    tools/errors.py --self-test

docs/errors.md is written by hand: messages in backquotes in the first column of tables, with cause and fix. Each of them must
occur in a message of the sources, "..." standing for what varies. docs/error_messages.md is the list of all messages, made from
every place in src/, include/ and cmd/ that constructs one of tutti's exceptions; --check compares it. A place whose text comes
from elsewhere (a helper, a message of another rank) is left out: its text is listed where it is made, or is not tutti's.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "errors.md"
LIST = ROOT / "docs" / "error_messages.md"
TYPES = "UsageError|MismatchError|PeerError|TimeoutError|CheckpointError|DataError|NonFiniteError|OutOfMemoryError|Error"
# Exceptions that tutti catches itself.
INTERNAL = "TransferError|StoreUnreachable|PortInUse|Malformed"
MODULES = {
    "cmd": "The command `tutti`", "launch": "Launching", "flight": "Flight records", "coordinator": "The coordinator", "plan": "Predicted steps", "core": "Launcher's variables, logging", "device": "Devices", "comm": "Communication",
    "data": "Data and loaders", "amp": "Mixed precision", "sync": "Gradients", "optim": "Optimizers and schedules",
    "data_parallel": "DataParallel", "process_group": "The backend of torch.distributed", "local_sgd": "Local SGD", "checkpoint": "Checkpoints", "exported": "Programs of torch.export", "state": "States",
    "tracking": "Metrics and reports", "train": "Accelerator and Trainer",
}
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')


def end_of_call(text, begin):
    """Returns the position after the parenthesis that closes the call around `begin`."""
    depth, i = 1, begin
    while depth and i < len(text):
        if text[i] == '"':
            i = LITERAL.match(text, i).end() - 1
        elif text[i] == "'" and text[i + 1:i + 3] in ("('", ")'", "\"'", "\\'"):
            i += 3 if text[i + 1] == "\\" else 2
        elif text[i] in "(){}":
            depth += 1 if text[i] in "({" else -1
        i += 1
    return i


def template(expression, nothing=""):
    """Returns the text of an expression, with "..." for each part that is not a literal, or `nothing` without text."""
    shown, last = "", 0
    for literal in LITERAL.finditer(expression):
        between = expression[last:literal.start()]
        if shown and between.strip() == ":":
            shown += " / "  # alternatives of a conditional
        if shown and re.search(r"\w", between) or not shown and re.search(r"\w", re.sub(r"std::string\(|\w+\($", "", between)):
            shown += "..."
        shown += literal[1].replace('\\"', '"').replace("\\n", " ").replace("\\'", "'").replace("\\\\", "\\")
        last = literal.end()
    if shown and re.search(r"\w", expression[last:]):
        shown += "..."
    return re.sub(r"(\.\.\.)+", "...", re.sub(r"\s+", " ", shown)).strip(" " if not nothing else "\n") or nothing


def built_before(text, name, begin):
    """Returns the text that the lines before assign to a local string `name`."""
    before = "\n".join(text[:begin].splitlines()[-16:])
    parts = re.findall(rf"(?:std::string {name}\s*=|std::string {name}\(|\b{name} \+?=|\b{name} <<)(.*?);", before, re.S)
    return re.sub(r"(\.\.\.)+", "...", "".join(template(part, "...") for part in parts)).strip() if parts else ""


def messages():
    """Returns {module: {(type, message)}} of all sources."""
    found = {module: set() for module in MODULES}
    for top in ("src", "include/tutti", "cmd"):
        for file in sorted((ROOT / top).rglob("*")):
            if file.suffix not in (".h", ".cpp"):
                continue
            text = re.sub(r"^\s*//.*$", lambda comment: " " * len(comment[0]), file.read_text(), flags=re.M)
            parts = [part for part in file.relative_to(ROOT).parts if part in MODULES]
            for site in re.finditer(rf"(?<![\w~])(?:tutti::)?(?:Damaged)?({TYPES})\(", text):
                expression = text[site.end():end_of_call(text, site.end()) - 1]
                message = template(expression)
                name = re.match(r"\s*(?:std::move\()?(\w+)(?:\.str\(\))?\)?\s*(?:,|$)", expression)
                if not message and name:
                    message = built_before(text, name[1], site.start())
                if len(re.findall(r"[A-Za-z]{2,}", message)) >= 2:
                    found[parts[0]].add((site[1], message))
    return found


def listed():
    """Returns the list of all messages, a page."""
    lines = ["# All error messages", "",
             "[Errors](errors.md) explains the frequent ones. This list is made from the sources by `tools/errors.py --write`.",
             "\"...\" is what varies: a name, a number, a reason.", ""]
    for module, rows in messages().items():
        if not rows:
            continue
        lines += [f"## {MODULES[module]}", "", "| error | message |", "|---|---|"]
        for kind, message in sorted(rows, key=lambda row: (row[1].lower(), row[0])):
            lines.append(f"| {kind} | {message.replace('|', chr(92) + '|').replace('<', '&lt;').replace('*', chr(92) + '*')} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def stale(page, sources):
    """Returns the messages of the page that no source throws."""
    wrong = []
    for number, line in enumerate(page.splitlines(), 1):
        cell = re.match(r"\| `([^`]+)` \|", line)
        if not cell or " " not in cell[1]:
            continue  # a type
        pattern = ".*?".join(re.escape(part.strip()) for part in cell[1].split("..."))
        if not any(re.search(pattern, source) for source in sources):
            wrong.append(f"docs/errors.md:{number}: no source says: {cell[1]}")
    return wrong


def literals():
    """Returns the text of every source, with adjacent literals joined and variable parts as '...'."""
    for top in ("src", "include/tutti", "cmd"):
        for file in sorted((ROOT / top).rglob("*")):
            if file.suffix in (".h", ".cpp"):
                text = re.sub(r"^\s*//.*$", "", file.read_text(), flags=re.M)
                joined = re.sub(r'"\s*\n\s*"', "", text)
                yield re.sub(r"\s+", " ", " ... ".join(LITERAL.findall(joined)).replace("\\n", " ").replace('\\"', '"'))


def check():
    wrong = stale(PAGE.read_text(), list(literals()))
    page = LIST.read_text() if LIST.exists() else ""
    if page != listed():
        here, there = set(page.splitlines()), set(listed().splitlines())
        wrong += [f"docs/error_messages.md has not: {line}" for line in sorted(there - here)]
        wrong += [f"docs/error_messages.md has, but no source: {line}" for line in sorted(here - there) if line.startswith("| ")]
        wrong.append("run tools/errors.py --write")
    return wrong


def self_test():
    text = 'throw UsageError(std::string("a thing ") + name + " is wrong: "\n    "set it");'
    begin = text.index("(") + 1
    assert template(text[begin:end_of_call(text, begin) - 1]) == "a thing ... is wrong: set it", template(text)
    assert template('who + ": no"') == "...: no"
    assert built_before('std::string text = "one ";\ntext += number;\ntext += " two";\n', "text", 70) == "one ... two"
    assert stale("| `a ... thing` | x |", ["this is a ... good ... thing"]) == []
    assert len(stale("| `a thing` | x |", ["no"])) == 1


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    elif sys.argv[1:] == ["--write"]:
        LIST.write_text(listed())
    elif sys.argv[1:] == ["--check"]:
        problems = check()
        print("\n".join(problems), end="\n" if problems else "")
        sys.exit(1 if problems else 0)
    else:
        sys.exit(__doc__)
