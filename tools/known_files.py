#!/usr/bin/env python3
"""known_files.py [--built] BUILD: fails if the project reads a file that the set-up does not install.

A machine on which the project is developed has more packages than a new one. Every file from outside of the tree, of
LibTorch and of the Python environments that the project makes must belong to the packages in tools/debian.py; the error
names the file, its package and what reads it. On a system without dpkg only the lists are compared.

Before the build (BUILD is configured): headers that sources include, files that CMake read, libraries on link lines,
modules that Python scripts import, paths of system files in sources, and the lists of packages in tools/packages.sh and
docs/dependencies.md. --built adds every file that the compiler read and every library that a built program loads.
--self-test BUILD takes each package out of the list in turn.
"""
import ast
import functools
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import debian

ROOT = debian.ROOT
INCLUDE = re.compile(r"^\s*#\s*include\s*[<\"]([^>\"]+)[>\"]", re.MULTILINE)
OPTIONAL_READER = re.compile(r"(?<![a-z])(?:mpi|gloo)(?![a-z])")  # "compiling" is none
SYSTEM_FILE = re.compile(r"/(?:usr/(?:share|lib|include)|etc)/[\w./+-]+\w")
# Files that pip needs to make environments and to fetch packages. No file of the project names them.
NEEDED_MODULES = ["venv", "ensurepip"]
NEEDED_FILES = ["/usr/share/ca-certificates"]
# Packages of which every complete set-up reads a file, each for a different kind of file.
SELF_TEST = ["cmake", "libgmock-dev", "libcli11-dev", "libssl-dev", "nlohmann-json3-dev", "python3-venv"]


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def tracked(*patterns):
    return [ROOT / name for name in output("git", "-C", ROOT, "ls-files", *patterns).splitlines()]


def include_folders(build):
    """Returns the folders in which the compiler searches headers: those of its commands, and its own."""
    folders = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        folders |= dict.fromkeys(word[2:] for word in words if word.startswith("-I"))
        folders |= dict.fromkeys(folder for option, folder in zip(words, words[1:]) if option == "-isystem")
    said = subprocess.run(["c++", "-x", "c++", "-E", "-v", os.devnull], capture_output=True, text=True, check=True).stderr
    folders |= dict.fromkeys(re.findall(r"^ (/\S+)$", said, re.MULTILINE))
    return [Path(folder) for folder in folders]


def included(build):
    folders, places = include_folders(build), {}
    for source in tracked("*.cpp", "*.h"):
        for name in INCLUDE.findall(source.read_text()):
            if name not in places:
                places[name] = next((folder / name for folder in folders if (folder / name).is_file()), None)
            if places[name] and not (source.parent / name).is_file():
                yield places[name], f"{source.relative_to(ROOT)} includes <{name}>"


def asked_for(build):
    """Yields the headers with which tools/packages.sh checks another system."""
    folders = include_folders(build)
    for name in output(ROOT / "tools/packages.sh", "--headers").split():
        for folder in folders:
            if (folder / name).is_file():
                yield folder / name, f"tools/packages.sh asks for <{name}>"


def ninja_paths(text):
    """Returns the paths of a list in build.ninja. A blank in a path is written as "$ "."""
    return [re.sub(r"\$(.)", r"\1", path) for path in re.findall(r"(?:\$.|[^\s$])+", text)]


def read_by_cmake(build):
    rule = re.search(r"^build build\.ninja: RERUN_CMAKE [^|]*\|(.*)$", (build / "build.ninja").read_text(), re.MULTILINE)
    for file in ninja_paths(rule.group(1)) if rule else []:
        yield build / file, "CMake reads it"


def linked(build):
    found = {}
    target = ""
    for line in (build / "build.ninja").read_text().splitlines():
        if line.startswith("build "):
            target = line.split()[1].rstrip(":")
        elif line.startswith("  LINK_LIBRARIES ="):
            for word in shlex.split(line):
                if word.startswith("/") or re.match(r"-l\w", word):
                    found.setdefault(word, target)
    for word, target in found.items():
        if word.startswith("-l"):
            word = output("c++", f"-print-file-name=lib{word[2:]}.so").strip()
        yield build / word, f"{target} is linked with it"


def imported():
    modules = {name: "pip needs it" for name in NEEDED_MODULES}
    for script in tracked("*.py"):
        for node in ast.walk(ast.parse(script.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else \
                [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            for name in names:
                modules.setdefault(name.split(".")[0], f"{script.relative_to(ROOT)} imports it")
    for name, reader in modules.items():
        if name in sys.stdlib_module_names and (spec := importlib.util.find_spec(name)) and spec.has_location:
            yield Path(spec.origin), reader


def named():
    """Yields the system files that sources name by path and that the machine has."""
    yield from ((Path(file), "pip needs it") for file in NEEDED_FILES)
    for source in tracked("*.cpp", "*.h", "*.py", "*.sh", "*.cmake", "*CMakeLists.txt", "dev"):
        for name in SYSTEM_FILE.findall(source.read_text()):
            if Path(name).is_file():
                yield Path(name), f"{source.relative_to(ROOT)} names it"


def compiled(build):
    target = ""
    for line in output("ninja", "-C", build, "-t", "deps").splitlines():
        if line.startswith("    "):
            yield build / line.strip(), f"compiling {target} reads it"
        elif line:
            target = line.split(":")[0]


def loaded(build):
    programs = [file for folder in ("bin", "tests", "lib", "python") for file in (build / folder).rglob("*")
                if file.is_file() and file.open("rb").read(4) == b"\x7fELF" and file.suffix != ".o"]
    program = programs[0] if programs else None
    for line in subprocess.run(["ldd", *programs], capture_output=True, text=True).stdout.splitlines():
        if not line.startswith("\t"):
            program = Path(line.rstrip(":"))
        elif match := re.search(r"=> (/.+) \(0x", line):
            yield Path(match.group(1)), f"{program.relative_to(build)} loads it"


class Readers:
    """The files from outside the project, each with a reader: one that is always built, if there is one."""

    def __init__(self, build):
        libtorch = re.search(r"^LIBTORCH:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE).group(1)
        # The folder of LibTorch has the wheels of its dependencies beside it.
        self.inside = tuple(str(folder.resolve()) + "/" for folder in (ROOT, build, Path(libtorch).resolve().parent))
        self.first = {}

    def add(self, found):
        for file, reader in found:
            path = os.path.realpath(file)
            if path.startswith(self.inside):
                continue
            self.first.setdefault(path, reader)
            if OPTIONAL_READER.search(self.first[path]):
                self.first[path] = reader

    def is_optional(self, path):
        """Whether only optional parts read a file. It may then come from the optional packages."""
        return OPTIONAL_READER.search(self.first[path])


@functools.cache
def owner_of(path):
    """Returns the package of a file, by its path or, on systems whose /lib is /usr/lib, by its short path."""
    for name in (path, path.removeprefix("/usr")):
        said = subprocess.run(["dpkg-query", "-S", name], capture_output=True, text=True)
        if said.returncode == 0:
            return said.stdout.split(":")[0]
    return None


@functools.cache
def paths_of(package):
    return {os.path.realpath(file) for file in debian.files_of(package)}


def foreign(readers, packages, setup):
    """Returns the errors as {path: text}."""
    needed = debian.known_packages(packages, setup, optional=[])
    extra = debian.known_packages(packages, setup) - needed
    errors = {}
    for path, reader in sorted(readers.first.items()):
        if any(path in paths_of(name) for name in needed):
            continue
        if readers.is_optional(path) and any(path in paths_of(name) for name in extra):
            continue
        owner = owner_of(path)
        if owner is None and path.startswith("/etc/"):
            continue  # the system's own settings
        errors[path] = f"{path}: {reader}; " + (
            f"its package {owner} is not in tools/packages.sh" if owner else "no package has it")
    return errors


def list_errors(readers, setup):
    """Yields the packages that docs/dependencies.md and the check for other systems lack."""
    documented = (ROOT / "docs/dependencies.md").read_text()
    for package in setup:
        if f"`{package}`" not in documented:
            yield f"docs/dependencies.md: does not list `{package}`, which tools/packages.sh installs"
    if not debian.is_debian():
        return
    headers = {path: reader for path, reader in readers.first.items() if " includes <" in reader}
    checked = output(ROOT / "tools/packages.sh", "--headers").split()
    asked = {owner_of(path) for path, reader in headers.items() if reader.split("<")[1].rstrip(">") in checked}
    for package in setup:
        reader = next((r for path, r in headers.items() if package not in asked and path in set(debian.files_of(package))), None)
        if reader:
            yield f"tools/packages.sh: {reader}, and no header of {package} is looked for on systems without apt"


def self_test(readers, packages, setup):
    """Removes each package from the list in turn and expects an error for one of its files."""
    assert ninja_paths(" /a/b$ c/d CMakeCache.txt | e$:f") == ["/a/b c/d", "CMakeCache.txt", "|", "e:f"]
    wanted = set(SELF_TEST)
    for package in setup:
        without = [name for name in setup if name != package]
        found = foreign(readers, packages, without)
        # The files of a package may be in one of its dependencies: cmake-data, python3.11-venv.
        brings = debian.with_dependencies([package], packages)
        if any(f"package {name} " in text for name in brings for text in found.values()):
            wanted.discard(package)
    if wanted:
        sys.exit(f"self-test: nothing is found without {', '.join(sorted(wanted))}")
    print(f"known_files: {len(setup)} packages taken out in turn")


def main():
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    if len(arguments) != 1:
        sys.exit(__doc__)
    build = Path(arguments[0]).resolve()
    readers, setup = Readers(build), debian.setup_packages()
    if debian.is_debian():
        for found in (included(build), asked_for(build), read_by_cmake(build), linked(build), imported(), named()):
            readers.add(found)
        if "--built" in sys.argv:
            readers.add(compiled(build))
            readers.add(loaded(build))
        packages = debian.installed_packages()
        if "--self-test" in sys.argv:
            return self_test(readers, packages, setup)
        errors = list(foreign(readers, packages, setup).values())
    else:
        print("This is no Debian system: whether the set-up installs all files that are read is not checked.", file=sys.stderr)
        errors = []
    errors += list_errors(readers, setup)
    print("\n".join(errors), file=sys.stderr, end="\n" if errors else "")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
