#!/usr/bin/env python3
"""known_commands.py COMMAND [ARGUMENTS...]: runs COMMAND with a PATH of only the commands that the set-up installs.

Those are the commands of the packages in tools/debian.py. So a need that the set-up does not meet shows on every
Debian machine, as a command that is not found; a shell script says which one, who called it, and where the machine has it.

Only the search in PATH is narrowed: programs that are called by their full path run as before (compilers that CMake found,
Python environments), and headers and libraries stay visible: tools/known_files.py checks these.
On a system without dpkg, COMMAND runs as it is, with a line that says so. --self-test shows that all this can fail.
"""
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import debian

ROOT = debian.ROOT
# Commands that the build, the checks and the tests call.
CALLED = "awk bash c++ ccache cmake ctest gcc git ip ldd ninja nm python3 readelf sed sh unshare update-ca-certificates"
BIN = re.compile(r"(/usr)?/s?bin/[^/]+")


def alternatives():
    """Yields (link, its choices, best first) of update-alternatives: /usr/bin/awk, [/usr/bin/mawk, ...]."""
    for file in sorted(debian.DPKG.glob("alternatives/*")):
        lines = file.read_text().split("\n")[1:]
        end = lines.index("")
        links = [lines[0], *lines[2:end:2]]
        choices, rest = [], lines[end + 1:]
        while rest and rest[0]:
            choices.append((int(rest[1]), [rest[0], *rest[2:1 + len(links)]]))
            rest = rest[1 + len(links):]
        choices.sort(key=lambda choice: -choice[0])
        for i, link in enumerate(links):
            yield link, [paths[i] for _, paths in choices if paths[i]]


def known_commands():
    """Returns {name: path}."""
    packages = debian.known_packages(debian.installed_packages(), debian.setup_packages())
    files = {file for package in packages for file in debian.files_of(package)}
    commands = {os.path.basename(f): f for f in files if BIN.fullmatch(f) and os.access(f, os.X_OK)}
    for link, choices in alternatives():
        theirs = [c for c in choices if c in files or os.path.realpath(c) in files]
        if BIN.fullmatch(link) and theirs:
            commands.setdefault(os.path.basename(link), theirs[0])
    return commands


def make_folder(commands, folder):
    """Replaces the folder by one with links to the commands."""
    if folder.is_dir() and {link.name: os.readlink(link) for link in folder.iterdir()} == commands:
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=folder.name + ".", dir=folder.parent))
    new.chmod(0o755)
    for name, path in commands.items():
        (new / name).symlink_to(path)
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)


def narrowed(folder):
    """Returns an environment with only these commands. Bash calls the function for all other commands."""
    environment = dict(os.environ, PATH=str(folder))
    environment["BASH_FUNC_command_not_found_handle%%"] = """() {
  local there
  there=$(PATH=%s command -v -- "$1") && there=" (this machine has $there)"
  echo "${BASH_SOURCE[1]:-$0}: line ${BASH_LINENO[0]}: $1: command not found among those of tools/packages.sh$there" >&2
  return 127
}""" % shlex.quote(os.environ.get("PATH", os.defpath))
    return environment


def self_test():
    """Commands of the set-up are found. A command of this machine alone is not, and the message names its path."""
    with tempfile.TemporaryDirectory() as scratch:
        unlisted = Path(scratch) / "only-on-this-machine"
        unlisted.write_text("#!/bin/sh\n")
        unlisted.chmod(0o755)
        os.environ["PATH"] = scratch + os.pathsep + os.environ["PATH"]
        environment = narrowed(ROOT / "build/known_commands")
        for command in CALLED.split():
            if not shutil.which(command, path=environment["PATH"]):
                sys.exit(f"self-test: {command} is not among the known commands")
        for shell in ("bash", "sh"):
            ran = subprocess.run([shell, "-c", unlisted.name], env=environment, capture_output=True, text=True)
            if ran.returncode != 127 or unlisted.name not in ran.stderr:
                sys.exit(f"self-test: {shell} ended with {ran.returncode} and said: {ran.stderr}")
            if shell == "bash" and str(unlisted) not in ran.stderr:
                sys.exit(f"self-test: bash did not say where the command is: {ran.stderr}")


def main():
    command = sys.argv[1:]
    if not command:
        sys.exit(__doc__)
    if not debian.is_debian():
        print("This is no Debian system: whether the set-up installs all commands that this calls is not checked.",
              file=sys.stderr)
        if command != ["--self-test"]:
            os.execvp(command[0], command)
        return
    folder = ROOT / "build/known_commands"
    make_folder(known_commands(), folder)
    if command == ["--self-test"]:
        self_test()
        return
    environment = narrowed(folder)
    found = shutil.which(command[0], path=environment["PATH"])
    if found is None:
        sys.exit(f"known_commands.py: no {command[0]} among the commands of tools/packages.sh")
    os.execve(found, command, environment)


main()
