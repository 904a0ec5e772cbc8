#!/usr/bin/env python3
"""Holds the include rule of the house: a room includes only the rooms below it that the table names.

Prints file:line for every include that breaks a rule, and exits with 1; so it does where docs/architecture.md does not
show the house as it is. --draw draws it there anew, --self-test shows that each rule can fail.
"""
import re
import sys
import tempfile
from pathlib import Path

# Each room and what it may include besides itself.
ROOMS = {
    "core": [],
    "flight": ["core"],
    "launch": ["core", "flight"],
    "plan": ["core"],
    "state": ["core"],
    "comm": ["core", "flight"],
    "data": ["core", "state"],
    "amp": ["core", "state"],
    "sync": ["core", "state", "comm"],
    "optim": ["core", "state", "amp", "sync"],
    "data_parallel": ["core", "comm"],
    "process_group": ["core", "comm"],
    "local_sgd": ["core", "state", "comm", "sync", "optim"],
    "checkpoint": ["core", "state", "comm"],
    "exported": ["core", "state", "checkpoint"],
    "tracking": ["core"],
}
ROOMS["train"] = list(ROOMS)

# The rooms inside comm, by folder, and what they may include of comm. The files in front of them may include them all;
# no room includes what stands in front.
COMM_ROOMS = {
    "engine": [],
    "sums": [],
    "members": [],
    "meeting": ["engine", "members", "shared"],
    "messages": ["engine", "members", "sums", "meeting"],
    "mesh": ["engine", "members", "meeting", "messages"],
    "mpi": ["engine", "meeting", "messages"],
    "shared": ["engine", "sums"],
    "hierarchical": ["engine", "sums", "shared"],
    "device": ["engine"],
    "mail": ["engine", "members", "meeting"],
    "standstill": ["engine", "meeting"],
}
FRONT = "in front"

NO_LIBTORCH = ["core", "flight", "launch", "plan", "tracking", "cmd"]
LIBTORCH = ("torch/", "ATen/", "c10/", "caffe2/")
C10D = "torch/csrc/distributed/c10d/"
KEPT_IN_ONE_FILE = {
    "Gloo's": ("gloo/", C10D + "ProcessGroupGloo", C10D + "gloo/"),
    "CUDA's": ("cuda", "nccl.h", "c10/cuda/", "ATen/cuda/", C10D + "ProcessGroupNCCL", C10D + "NCCL"),
}
SOURCES = ["include", "src", "python", "cmd", "examples", "bench", "tests"]
UMBRELLA = "include/tutti/tutti.h"
BESIDE_UMBRELLA = ["process_group"]  # c10d's headers: who needs them includes them
PICTURE = "docs/architecture.md"
PICTURE_BEGINS, PICTURE_ENDS = "<!-- drawn by tools/check_layers.py --draw -->\n", "<!-- end of the drawing -->\n"


def includes(path):
    """Yields (line number, included name) of a file."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
        if match:
            yield number, match.group(1)


def room_of(file):
    """The room of a file, by its path from the root; "cmd" counts as one. None where no rule holds."""
    parts = file.split("/")
    if parts[:2] == ["include", "tutti"] and len(parts) > 3:
        return parts[3] if parts[2] == "detail" else parts[2]
    if parts[0] == "src" and len(parts) > 2:
        return parts[1]
    if parts[0] == "cmd" and parts[1] in ("env", "export_check", "plan"):  # programs of their own, which ask LibTorch
        return None
    return "cmd" if parts[0] == "cmd" else None


def comm_room_of(file):
    """The room inside comm of a private file, FRONT for those before them; None elsewhere."""
    parts = file.split("/")
    if parts[:2] != ["src", "comm"]:
        return None
    return parts[2] if len(parts) > 3 else FRONT


def target_of(file, name, root):
    """The path from the root of an include of ours, or None when it is somebody else's."""
    beside = (Path(file).parent / name).as_posix()
    for candidate in ("include/" + name, "src/" + name, beside):
        if (root / candidate).is_file():
            return candidate
    return "include/" + name if name.startswith("tutti/") else None


def owner_of(name):
    """Whose header it is, where one file alone may include it; else None."""
    return next((whose for whose, names in KEPT_IN_ONE_FILE.items() if name.startswith(names)), None)


def broken_rule(file, name, root):
    """Why `file` may not include `name`, or None."""
    room, target = room_of(file), target_of(file, name, root)
    if target is None:
        if room in NO_LIBTORCH and name.startswith(LIBTORCH):
            return f"{room} does without LibTorch"
        if file.endswith(".h") and (whose := owner_of(name)):
            return f"{whose} headers stay out of headers"
        return None
    if file.startswith("include/") and not target.startswith("include/"):
        return "public headers include only public headers"
    if file.startswith("python/") and target.startswith("src/"):
        return "python stands above all rooms and includes only their public headers"
    if room is None:
        return None
    allowed = ["core", "flight", "launch", "tracking"] if room == "cmd" else ROOMS[room]
    inner, other_inner = comm_room_of(file), comm_room_of(target)
    if inner in COMM_ROOMS and other_inner not in (None, inner, *COMM_ROOMS[inner]):
        return f"comm/{inner} may include of comm only {', '.join(COMM_ROOMS[inner]) or 'itself'}, not {other_inner}"
    other = room_of(target)
    if other not in allowed and other != room:
        return f"{room} may include only {', '.join(allowed) or 'itself'}, not {other or 'tutti.h'}"
    return None


def sources_in(root, tops=SOURCES):
    return [path for top in tops for path in sorted((root / top).rglob("*")) if path.suffix in (".h", ".cpp")]


def errors_in(root):
    files = sources_in(root)
    errors, users_of = [], {}
    for path in files:
        file = path.relative_to(root).as_posix()
        if comm_room_of(file) not in (None, FRONT, *COMM_ROOMS):
            errors.append(f"{file}:1: '{comm_room_of(file)}' is not a room of comm: add it to COMM_ROOMS")
            continue
        if room_of(file) not in (None, "cmd", *ROOMS):
            errors.append(f"{file}:1: '{room_of(file)}' is not a room: add it to the house's table and to ROOMS")
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
    """tutti.h includes every header for users, itself or through another."""
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


def uses_in(root, room_of_file):
    """Which rooms each room includes, as the code stands."""
    uses = {}
    for path in sources_in(root, ["include", "src"]):
        file = path.relative_to(root).as_posix()
        room = room_of_file(file)
        if room is None:
            continue
        found = uses.setdefault(room, set())
        for _, name in includes(path):
            target = target_of(file, name, root)
            other = room_of_file(target) if target else None
            if other not in (None, room):
                found.add(other)
    return uses


def floors(uses):
    """Rooms by floor: a room stands one floor above the highest that it uses."""
    floor = {}

    def floor_of(room):
        if room not in floor:
            floor[room] = 1 + max((floor_of(other) for other in uses[room]), default=-1)
        return floor[room]

    for room in sorted(uses):
        floor_of(room)
    return [sorted(room for room in uses if floor[room] == number) for number in range(max(floor.values()) + 1)]


def drawing(root):
    """The house as text, the top floor first: each room with the rooms that its files include."""
    lines = ["```text"]
    for title, room_of_file in (("tutti", room_of), ("inside comm", comm_room_of)):
        uses = uses_in(root, room_of_file)
        rows = floors(uses)
        width = max(map(len, uses))
        lines.append(title)
        for number in reversed(range(len(rows))):
            for room in rows[number]:
                below = [other for row in rows for other in row if other in uses[room]]
                lines.append(f"  {number}  {room:<{width}}  {'<- ' + ' '.join(below) if below else ''}".rstrip())
        lines.append("")
    lines[-1] = "```"
    return "\n".join(lines) + "\n"


def picture_parts(root):
    """What stands before the drawing, the drawing, and what comes after it."""
    before, found, rest = (root / PICTURE).read_text().partition(PICTURE_BEGINS)
    drawn, ended, after = rest.partition(PICTURE_ENDS)
    if not found or not ended:
        sys.exit(f"{PICTURE} has no place for the drawing")
    return before + PICTURE_BEGINS, drawn, PICTURE_ENDS + after


def self_test():
    cases = [  # file, the line in it, what the error says; None: allowed
        ("include/tutti/sync/a.h", '#include "tutti/comm/b.h"', None),
        ("include/tutti/comm/a.h", '#include "tutti/sync/b.h"', "comm may include only core, flight, not sync"),
        ("src/data/a.cpp", "#include <tutti/comm/b.h>", "data may include only core, state, not comm"),
        ("src/launch/a.cpp", "# include <ATen/ATen.h>", "launch does without LibTorch"),
        ("src/core/a.cpp", '#include "tutti/launch/b.h"', "core may include only itself"),
        ("cmd/tutti/main.cpp", '#include "tutti/train/b.h"', "cmd may include only"),
        ("cmd/tutti/main.cpp", '#include "tutti/launch/b.h"', None),
        ("cmd/report.cpp", '#include "tutti/tracking/b.h"', None),
        ("cmd/env/env.cpp", '#include "tutti/comm/b.h"', None),
        ("src/tracking/a.cpp", "#include <torch/torch.h>", "tracking does without LibTorch"),
        ("include/tutti/comm/a.h", '#include "comm/private.h"', "only public headers"),
        ("src/sync/a.cpp", '#include "comm/private.h"', None),
        ("src/attic/a.cpp", "#include <vector>", "not a room"),
        ("src/train/a.cpp", "#include <gloo/config.h>", "only one file of src/"),
        ("src/train/a.cpp", "#include <c10/cuda/CUDAStream.h>", "only one file of src/ may include CUDA's"),
        ("bench/a.cpp", "#include <gloo/config.h>", None),
        ("bench/a.h", "#include <gloo/config.h>", "out of headers"),
        ("src/train/a.cpp", '#include "tutti/tutti.h"', "not tutti.h"),
        ("include/tutti/train/new.h", "", "does not include include/tutti/train/new.h"),
        ("include/tutti/detail/train/new.h", "", None),
        ("include/tutti/process_group/new.h", "", None),
        ("include/tutti/detail/comm/a.h", '#include "tutti/sync/b.h"', "comm may include only core, flight, not sync"),
        ("src/comm/shared/a.cpp", '#include "comm/sums/b.h"', None),
        ("src/comm/sums/a.cpp", '#include "comm/shared/b.h"', "comm/sums may include of comm only itself, not shared"),
        ("src/comm/shared/a.cpp", '#include "comm/private.h"', "not in front"),
        ("src/comm/a.cpp", '#include "comm/shared/b.h"', None),
        ("src/comm/cellar/a.cpp", "#include <vector>", "not a room of comm"),
    ]
    for file, line, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            headers = {f"include/tutti/{room}/b.h": "" for room in ROOMS}
            umbrella = "".join(f'#include "tutti/{room}/b.h"\n' for room in ROOMS)
            base = {**headers, "src/comm/private.h": "", "src/comm/shared/b.h": "",
                    "src/comm/sums/b.h": "", "src/comm/gloo.cpp": "#include <gloo/config.h>\n",
                    "src/comm/nccl.cpp": "#include <nccl.h>\n"}
            in_umbrella = file.startswith("include/") and line and "detail" not in file
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
        house = drawing(root)
        if "--draw" in sys.argv[1:]:
            (root / PICTURE).write_text(before + house + after)
        elif drawn != house:
            errors.append(f"{PICTURE} shows another house than the code: run tools/check_layers.py --draw")
    print("\n".join(errors), file=sys.stderr, end="\n" if errors else "")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
