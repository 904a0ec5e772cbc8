#!/usr/bin/env python3
"""Checks the include rule of the layers: a module includes only the modules below it that the table lists.

Prints file:line for every include that breaks a rule, and exits with 1; so it does where docs/architecture.md does not
show the layers as they are. --draw draws them there again, --self-test shows that each rule can fail.
"""
import re
import sys
import tempfile
from pathlib import Path

# Each module and what it may include besides itself.
MODULES = {
    "core": [],
    "flight": ["core"],
    "coordinator": ["core", "flight"],
    "launch": ["core", "flight", "coordinator"],
    "plan": ["core"],
    "device": ["core"],
    "state": ["core", "device"],
    "comm": ["core", "device", "flight", "coordinator"],
    "data": ["core", "device", "state"],
    "amp": ["core", "device", "state"],
    "sync": ["core", "device", "state", "comm"],
    "optim": ["core", "device", "state", "amp", "sync"],
    "data_parallel": ["core", "device", "comm"],
    "process_group": ["core", "device", "comm"],
    "local_sgd": ["core", "device", "state", "comm", "sync", "optim"],
    "checkpoint": ["core", "device", "state", "comm"],
    "exported": ["core", "device", "state", "checkpoint"],
    "tracking": ["core"],
}
MODULES["train"] = [module for module in MODULES if module != "exported"]

# The modules inside comm, by folder, and the modules of comm that they may include. The files directly in comm may
# include all of them; no module includes these files.
COMM_MODULES = {
    "os": [],
    "reduction": [],
    "backend": ["os"],
    "rendezvous": ["backend"],
    "shm": ["os", "backend", "reduction"],
    "health": ["backend", "rendezvous"],
    "deadlock": ["backend", "rendezvous", "os"],
    "transport": ["os", "backend"],
    "algorithms": ["os", "backend", "reduction", "transport"],
    "transport/tcp": ["os", "backend", "rendezvous", "health", "transport", "algorithms"],
    "transport/mpi": ["os", "backend", "rendezvous", "health", "transport"],
    "hierarchical": ["backend", "reduction", "shm"],
    "device": ["backend", "reduction"],
}
FRONT = "in front"
# The public headers that belong to the files in front: the modules inside comm do not include the facade over them.
FACADE = ["include/tutti/comm/communicator.h", "include/tutti/comm/thread_ranks.h",
          "include/tutti/detail/comm/gradient_communicator.h"]

NO_LIBTORCH = ["core", "flight", "coordinator", "launch", "plan", "tracking", "cmd"]
LIBTORCH = ("torch/", "ATen/", "c10/", "caffe2/")
C10D = "torch/csrc/distributed/c10d/"
KEPT_IN_ONE_FILE = {
    "Gloo's": ("gloo/", C10D + "ProcessGroupGloo", C10D + "gloo/"),
    "CUDA's": ("cuda", "nccl.h", "c10/cuda/", "ATen/cuda/", C10D + "ProcessGroupNCCL", C10D + "NCCL"),
}
SOURCES = ["include", "src", "python", "cmd", "examples", "bench", "tests"]
UMBRELLA = "include/tutti/tutti.h"
# process_group: its headers include c10d's, which take long to compile. exported: a component that a build may leave out.
BESIDE_UMBRELLA = ["process_group", "exported"]
PICTURE = "docs/architecture.md"
PICTURE_BEGINS, PICTURE_ENDS = "<!-- drawn by tools/check_layers.py --draw -->\n", "<!-- end of the drawing -->\n"


def includes(path):
    """Yields (line number, included name) of a file."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
        if match:
            yield number, match.group(1)


def module_of(file):
    """Returns the module of a file, by its path from the root, with "cmd" as one module; None without a rule."""
    parts = file.split("/")
    if parts[:2] == ["include", "tutti"] and len(parts) > 3:
        return parts[3] if parts[2] == "detail" else parts[2]
    if parts[0] == "src" and len(parts) > 2:
        return parts[1]
    if parts[0] == "cmd" and parts[1] in ("env", "export_check", "plan"):  # separate programs that use LibTorch
        return None
    return "cmd" if parts[0] == "cmd" else None


def comm_module_of(file):
    """Returns the module inside comm of a file, FRONT for the facade and files directly in comm; None elsewhere."""
    if file in FACADE:
        return FRONT
    parts = file.split("/")
    if parts[:2] != ["src", "comm"]:
        return None
    return "/".join(parts[2:-1]) or FRONT


def target_of(file, name, root):
    """Returns the path from the root of an include, or None if it is not a file of tutti."""
    beside = (Path(file).parent / name).as_posix()
    for candidate in ("include/" + name, "src/" + name, beside):
        if (root / candidate).is_file():
            return candidate
    return "include/" + name if name.startswith("tutti/") else None


def owner_of(name):
    """Returns the library of a header that only one file may include; None for other headers."""
    return next((whose for whose, names in KEPT_IN_ONE_FILE.items() if name.startswith(names)), None)


def broken_rule(file, name, root):
    """Returns the reason why `file` may not include `name`, or None."""
    module, target = module_of(file), target_of(file, name, root)
    if target is None:
        if module in NO_LIBTORCH and name.startswith(LIBTORCH):
            return f"{module} does without LibTorch"
        if file.endswith(".h") and (whose := owner_of(name)):
            return f"{whose} headers stay out of headers"
        return None
    if file.startswith("include/") and not target.startswith("include/"):
        return "public headers include only public headers"
    if file.startswith("python/") and target.startswith("src/"):
        return "python stands above all modules and includes only their public headers"
    if module is None:
        return None
    allowed = ["core", "flight", "launch", "tracking"] if module == "cmd" else MODULES[module]
    inner, other_inner = comm_module_of(file), comm_module_of(target)
    if inner in COMM_MODULES and other_inner not in (None, inner, *COMM_MODULES[inner]):
        return f"comm/{inner} may include of comm only {', '.join(COMM_MODULES[inner]) or 'itself'}, not {other_inner}"
    other = module_of(target)
    if other not in allowed and other != module:
        return f"{module} may include only {', '.join(allowed) or 'itself'}, not {other or 'tutti.h'}"
    return None


def sources_in(root, tops=SOURCES):
    return [path for top in tops for path in sorted((root / top).rglob("*")) if path.suffix in (".h", ".cpp")]


def errors_in(root):
    files = sources_in(root)
    errors, users_of = [], {}
    for path in files:
        file = path.relative_to(root).as_posix()
        if comm_module_of(file) not in (None, FRONT, *COMM_MODULES):
            errors.append(f"{file}:1: '{comm_module_of(file)}' is not a module of comm: add it to COMM_MODULES")
            continue
        if module_of(file) not in (None, "cmd", *MODULES):
            errors.append(f"{file}:1: '{module_of(file)}' is not a module: add it to the table in docs/architecture.md and to MODULES")
            continue
        for line, name in includes(path):
            why = broken_rule(file, name, root)
            if why:
                errors.append(f"{file}:{line}: includes {name}: {why}")
            if whose := owner_of(name):
                users_of.setdefault((file.split("/")[0], whose), {})[file] = line
    for (folder, whose), users in users_of.items():
        if len(users) > 1:
            errors += [f"{file}:{line}: only one file of {folder}/ may include {whose} headers" for file, line in users.items()]
    return errors + missing_from_umbrella(root)


def missing_from_umbrella(root):
    """Checks that tutti.h includes every header for users, directly or indirectly."""
    if not (root / UMBRELLA).is_file():
        return []
    seen, todo = set(), [UMBRELLA]
    while todo:
        file = todo.pop()
        seen.add(file)
        targets = [target_of(file, name, root) for _, name in includes(root / file)]
        todo += [t for t in targets if t and t not in seen and (root / t).is_file()]
    headers = {path.relative_to(root).as_posix() for path in (root / "include").rglob("*.h")}
    beside = tuple(f"include/tutti/{folder}/" for folder in ["detail", *BESIDE_UMBRELLA])
    headers = {header for header in headers if not header.startswith(beside)}
    return [f"{UMBRELLA}:1: does not include {header}" for header in sorted(headers - seen)]


def uses_in(root, module_of_file):
    """Returns the modules that each module includes in the code."""
    uses = {}
    for path in sources_in(root, ["include", "src"]):
        file = path.relative_to(root).as_posix()
        module = module_of_file(file)
        if module is None:
            continue
        found = uses.setdefault(module, set())
        for _, name in includes(path):
            target = target_of(file, name, root)
            other = module_of_file(target) if target else None
            if other not in (None, module):
                found.add(other)
    return uses


def levels(uses):
    """Returns the modules by layer: a module is one layer above the highest module that it uses."""
    level = {}

    def level_of(module):
        if module not in level:
            level[module] = 1 + max((level_of(other) for other in uses[module]), default=-1)
        return level[module]

    for module in sorted(uses):
        level_of(module)
    return [sorted(module for module in uses if level[module] == number) for number in range(max(level.values()) + 1)]


def drawing(root):
    """Draws the layers as text, the top one first: each module with the modules that its files include."""
    lines = ["```text"]
    for title, module_of_file in (("tutti", module_of), ("inside comm", comm_module_of)):
        uses = uses_in(root, module_of_file)
        rows = levels(uses)
        width = max(map(len, uses))
        lines.append(title)
        for number in reversed(range(len(rows))):
            for module in rows[number]:
                below = [other for row in rows for other in row if other in uses[module]]
                lines.append(f"  {number}  {module:<{width}}  {'<- ' + ' '.join(below) if below else ''}".rstrip())
        lines.append("")
    lines[-1] = "```"
    return "\n".join(lines) + "\n"


def picture_parts(root):
    """Returns the text before the drawing, the drawing, and the text after it."""
    before, found, rest = (root / PICTURE).read_text().partition(PICTURE_BEGINS)
    drawn, ended, after = rest.partition(PICTURE_ENDS)
    if not found or not ended:
        sys.exit(f"{PICTURE} has no place for the drawing")
    return before + PICTURE_BEGINS, drawn, PICTURE_ENDS + after


def self_test():
    cases = [  # file, the line in it, a part of the error; None: allowed
        ("include/tutti/sync/a.h", '#include "tutti/comm/b.h"', None),
        ("include/tutti/comm/a.h", '#include "tutti/sync/b.h"', "comm may include only core, device, flight, coordinator, not sync"),
        ("src/data/a.cpp", "#include <tutti/comm/b.h>", "data may include only core, device, state, not comm"),
        ("src/launch/a.cpp", "# include <ATen/ATen.h>", "launch does without LibTorch"),
        ("src/core/a.cpp", '#include "tutti/launch/b.h"', "core may include only itself"),
        ("cmd/tutti/main.cpp", '#include "tutti/train/b.h"', "cmd may include only"),
        ("cmd/tutti/main.cpp", '#include "tutti/launch/b.h"', None),
        ("cmd/report.cpp", '#include "tutti/tracking/b.h"', None),
        ("cmd/env/env.cpp", '#include "tutti/comm/b.h"', None),
        ("src/tracking/a.cpp", "#include <torch/torch.h>", "tracking does without LibTorch"),
        ("include/tutti/comm/a.h", '#include "comm/private.h"', "only public headers"),
        ("src/sync/a.cpp", '#include "comm/private.h"', None),
        ("src/unknown/a.cpp", "#include <vector>", "not a module"),
        ("src/train/a.cpp", "#include <gloo/config.h>", "only one file of src/"),
        ("src/train/a.cpp", "#include <c10/cuda/CUDAStream.h>", "only one file of src/ may include CUDA's"),
        ("bench/a.cpp", "#include <gloo/config.h>", None),
        ("bench/a.h", "#include <gloo/config.h>", "out of headers"),
        ("src/train/a.cpp", '#include "tutti/tutti.h"', "not tutti.h"),
        ("include/tutti/train/new.h", "", "does not include include/tutti/train/new.h"),
        ("include/tutti/detail/train/new.h", "", None),
        ("include/tutti/process_group/new.h", "", None),
        ("include/tutti/exported/new.h", "", None),
        ("src/train/a.cpp", '#include "tutti/exported/b.h"', "not exported"),
        ("include/tutti/detail/comm/a.h", '#include "tutti/sync/b.h"', "comm may include only core, device, flight, coordinator, not sync"),
        ("src/comm/shm/a.cpp", '#include "comm/reduction/b.h"', None),
        ("src/comm/reduction/a.cpp", '#include "comm/shm/b.h"', "comm/reduction may include of comm only itself, not shm"),
        ("src/comm/shm/a.cpp", '#include "comm/private.h"', "not in front"),
        ("src/comm/shm/a.cpp", '#include "tutti/comm/communicator.h"', "not in front"),
        ("src/comm/shm/a.cpp", '#include "tutti/comm/b.h"', None),
        ("src/comm/a.cpp", '#include "tutti/comm/communicator.h"', None),
        ("src/comm/a.cpp", '#include "comm/shm/b.h"', None),
        ("src/comm/unknown/a.cpp", "#include <vector>", "not a module of comm"),
    ]
    for file, line, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            headers = {f"include/tutti/{module}/b.h": "" for module in MODULES}
            umbrella = "".join(f'#include "tutti/{module}/b.h"\n' for module in MODULES)
            base = {**headers, "src/comm/private.h": "", FACADE[0]: "", "src/comm/shm/b.h": "",
                    "src/comm/reduction/b.h": "", "src/comm/gloo.cpp": "#include <gloo/config.h>\n",
                    "src/comm/nccl.cpp": "#include <nccl.h>\n"}
            in_umbrella = file.startswith("include/") and line and "detail" not in file
            umbrella += f'#include "{FACADE[0].removeprefix("include/")}"\n'
            umbrella += f'#include "{file.removeprefix("include/")}"\n' if in_umbrella else ""
            for name, text in {**base, UMBRELLA: umbrella, file: "\n" + line + "\n"}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            found = errors_in(root)
            ok = expected in "\n".join(found) if expected else not found
            if not ok:
                sys.exit(f"self-test: {file} with {line!r}: expected {expected!r}, found {found}")
    print(f"check_layers: {len(cases)} rules tried")


def main():
    if "--self-test" in sys.argv[1:]:
        self_test()
        return
    root = Path(__file__).resolve().parent.parent
    errors = errors_in(root)
    if not errors:
        before, drawn, after = picture_parts(root)
        layers = drawing(root)
        if "--draw" in sys.argv[1:]:
            (root / PICTURE).write_text(before + layers + after)
        elif drawn != layers:
            errors.append(f"{PICTURE} shows other layers than the code: run tools/check_layers.py --draw")
    print("\n".join(errors), file=sys.stderr, end="\n" if errors else "")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
