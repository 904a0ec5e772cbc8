#!/usr/bin/env python3
"""Checks docs/options.md against the sources.

    tools/options.py --check         # prints what is missing or stale, and exits with 1
    tools/options.py --show STRUCT   # a table of a struct's members, to begin with
    tools/options.py --self-test

Checked are: for each heading ### `Struct` the members of that struct in include/tutti, their order and their defaults; that every
public struct of options has a heading; every environment variable that src/ and cmd/ read or set; every option of `tutti
launch`; every option of CMake. Also that the page names no option of these, and no variable TUTTI_*, that is no more.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "options.md"
# Structs named options that are documented elsewhere.
ELSEWHERE = {
    "ScheduleOptions": "the arguments of the schedules by name",
    "WarmupStableDecayOptions": "docs/guides/train_step.md",
    "OneCycleOptions": "docs/guides/train_step.md",
    "OptimizerOptions": "prepare() fills it",
    "ShardOptions": "the loader fills it",
    "StreamShardOptions": "the loader fills it",
    "LaunchOptions": "the options of tutti launch",
    "HostLaunchOptions": "the options of tutti launch",
    "InspectOptions": "the options of tutti inspect",
}
# Words in capitals that are not variables.
NO_VARIABLES = re.compile(r"(SIG[A-Z]+|TLS_\w+|INT|FLOAT|UINT|POSITIVE|NUMBER|RUN|FOLDER|SGD\w*|CUDA|CU\w+_STATUS_\w+|TORCH_VERSION_\w+|[FIUC]\d+\w*|B?F\d+\w*|"
                          r"BOOL|\w+_|[A-Z]{1,2})$")
# Variables of a login or a shell, which --hostfile does not pass on.
LOGIN = {"ARGC", "BASHOPTS", "BASHPID", "BASH_VERSINFO", "EGID", "EUID", "FUNCNAME", "GID", "GROUPS", "HISTCMD", "IFS", "KSH_VERSION",
         "LINENO", "OPTARG", "OPTERR", "OPTIND", "PPID", "RANDOM", "SECONDS", "SHELLOPTS", "TTYIDLE", "UID", "USERNAME", "ZSH_SUBSHELL",
         "DISPLAY", "HOME", "HOSTNAME", "LOGNAME", "LS_COLORS", "MAIL", "OLDPWD", "PWD", "SHELL", "SHLVL", "STY", "TMUX", "TMPDIR",
         "TTY", "USER"}


def members(body):
    """Returns [(name, default, comment)] of a struct's body."""
    found, comment = [], ""
    for line in body.splitlines():
        line = line.strip()
        if line.startswith("///"):
            comment = f"{comment} {line[3:].strip()}".strip()
            continue
        member = re.match(r"[\w:<>,\s*&()]+?[\s>](\w+)(?:\s*=\s*([^;]+)|(\{[^;]*\}))?;(?:\s*///<\s*(.*))?$", line)
        if member and "operator" not in line and not line.startswith(("using", "return", "friend", "static")):
            default = (member[2] or "").strip() or ("" if member[3] in (None, "{}") else member[3])
            found.append((member[1], default, member[4] or comment))
        if line:
            comment = "" if not line.startswith("//") else comment
    return found


def structs():
    """Returns {name: members} of the public headers."""
    found = {}
    for header in sorted((ROOT / "include" / "tutti").rglob("*.h")):
        for struct in re.finditer(r"^struct (\w+)[^;{]*\{\n(.*?)^\};", header.read_text(), re.M | re.S):
            found.setdefault(struct[1], members(struct[2]))
    return found


def page_tables(page):
    """Returns {struct: [(member, default)]}."""
    tables = {}
    for part in re.split(r"^##+ ", page, flags=re.M)[1:]:
        heading = re.match(r"`(\w+)`", part)
        if heading:
            rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", part, re.M)
            tables[heading[1]] = [(name, default.strip().strip("`")) for name, default in rows]
    return tables


def source_text():
    for folder in ("src", "cmd"):
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in (".h", ".cpp"):
                yield file.read_text()


def variables():
    named = set()
    for text in source_text():
        named |= {word for word in re.findall(r'"([A-Z][A-Z0-9_]{2,})"', text) if not NO_VARIABLES.match(word)}
        named |= set(re.findall(r'"((?:OMPI|TUTTI|PMIX?|SLURM)_[A-Za-z0-9_]+)"', text))
    return named - LOGIN


def cmake_options():
    files = [ROOT / "CMakeLists.txt", *(ROOT / "cmake").glob("*.cmake"), *(ROOT / "tests" / "fuzz").glob("CMakeLists.txt"),
             *(file for folder in ("src", "python", "bench") for file in (ROOT / folder).rglob("CMakeLists.txt"))]
    text = "".join(file.read_text() for file in files)
    return set(re.findall(r"\b(?:option|find_path)\((TUTTI_\w+)", text) + re.findall(r"\bset\((TUTTI_\w+) [^)]*\bCACHE\b", text))


def launch_options():
    text = (ROOT / "cmd" / "launch_command.cpp").read_text()
    groups = re.findall(r'add_(?:option|flag)\(\s*"([^"]+)"[^;]*?;', text)
    hidden = re.findall(r'add_(?:option|flag)\("([^"]+)"[^;]*group\(""\)', text)
    spellings = re.findall(r'\{"(--[\w-]+)", "--', text)
    return {name for group in groups if group not in hidden for name in group.split(",")} | set(spellings)


def stale(page):
    """Yields the variables and options that a page names and that no source has."""
    scripts = "".join(file.read_text() for file in [ROOT / "dev", *(ROOT / "tools").glob("*.sh")])
    known = variables() | cmake_options() | set(re.findall(r"\bTUTTI_[A-Z_]+", scripts))
    part = re.search(r"^## `tutti launch`\n.*?(?=^## |\Z)", page, re.M | re.S)
    yield from sorted(set(re.findall(r"\bTUTTI_[A-Z_]+", page)) - known)
    yield from sorted({f"-D{name}" for name in set(re.findall(r"-D(TUTTI_\w+)", page)) - cmake_options()})
    rows = "".join(re.findall(r"^\|.*\n", part[0], re.M)) if part else ""
    yield from sorted(set(re.findall(r"(?<![\w-])--[a-z][\w-]*", rows)) - launch_options())


def check():
    page, wrong, known = PAGE.read_text(), [], structs()
    tables = page_tables(page)
    for name, rows in tables.items():
        if name not in known:
            wrong.append(f"there is no struct {name}")
            continue
        there = [(member, default) for member, default, _ in known[name]]
        for member, default in there:
            if member not in dict(rows):
                wrong.append(f"{name} has a member that docs/options.md has not: {member}")
            elif dict(rows)[member] != default:
                wrong.append(f"{name}::{member} is {default or 'without default'}, not {dict(rows)[member] or 'without default'}")
        wrong += [f"{name} has no member {member}" for member, _ in rows if member not in dict((m, d) for m, d in there)]
        if not wrong and [member for member, _ in rows] != [member for member, _ in there]:
            wrong.append(f"{name}: the members stand in another order in the header")
    wrong += [f"docs/options.md has no heading for {name}" for name in known
              if re.search(r"(Options|Plugin|Configuration)$", name) and name not in tables and name not in ELSEWHERE]
    wrong += [f"docs/options.md does not name the variable {name}" for name in sorted(variables())
              if not re.search(rf"\b{name}\b", page)]
    wrong += [f"docs/options.md does not name the CMake option {name}" for name in sorted(cmake_options())
              if f"`-D{name}" not in page]
    wrong += [f"docs/options.md does not name the option {name}" for name in sorted(launch_options())
              if not re.search(rf"`[^`]*{re.escape(name)}\b", page)]
    wrong += [f"there is no {name}, which docs/options.md names" for name in stale(page)]
    return wrong


def self_test():
    body = "  /// How many.\n  int steps = 1;\n  std::optional<at::Device> device{};\n  bool fast = true;  ///< or not\n  bool operator==(const A&) const = default;\n"
    assert members(body) == [("steps", "1", "How many."), ("device", "", ""), ("fast", "true", "or not")], members(body)
    assert page_tables("### `A`\n| `x` | `1` | y |\n| `z` |  | y |\n") == {"A": [("x", "1"), ("z", "")]}
    text = "`TUTTI_GONE` `TUTTI_BACKEND` `-DTUTTI_CUDA` `-DTUTTI_BACKEND`\n## `tutti launch`\n| `--gone` `--nnodes` |\n`--report`\n## CMake\n`--other`\n"
    assert list(stale(text)) == ["TUTTI_GONE", "-DTUTTI_BACKEND", "--gone"], list(stale(text))
    assert "--nnodes" in launch_options() and "--machine-rank" in launch_options() and "--announce-port" not in launch_options()
    assert {"TUTTI_CUDA", "TUTTI_PYTHON_EXECUTABLE", "TUTTI_BUILD_FUZZERS", "TUTTI_GLOO_HEADERS"} <= cmake_options()
    assert "TUTTI_BACKEND" in variables() and "OMPI_MCA_ess_base_jobid" in variables() and "BF16" not in variables()


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    elif sys.argv[1:] == ["--check"]:
        problems = check()
        print("\n".join(problems), end="\n" if problems else "")
        sys.exit(1 if problems else 0)
    elif len(sys.argv) == 3 and sys.argv[1] == "--show":
        for member, default, comment in structs()[sys.argv[2]]:
            print(f"| `{member}` | {f'`{default}`' if default else ''} | {comment} |")
    else:
        sys.exit(__doc__)
