"""The packages that the set-up installs on a Debian or Ubuntu system, by its package manager.

Shared by known_commands.py and known_files.py. Known are the packages of a bare system, git, those that tools/packages.sh
names, the optional ones below, and what all these depend on.
"""
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DPKG = Path("/var/lib/dpkg")
BARE = ["git", "apt"]
# Tests and benchmarks use these packages if they are installed, and skip without them.
OPTIONAL = ["openmpi-bin", "libopenmpi-dev", "mpich", "libmpich-dev", "libgloo-dev"]


def is_debian():
    return (DPKG / "status").exists()


def installed_packages():
    """Returns {name: fields} of all installed packages."""
    packages = {}
    for paragraph in (DPKG / "status").read_text(errors="replace").split("\n\n"):
        fields = dict(re.findall(r"^([A-Z][\w-]*): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            packages.setdefault(fields["Package"], fields)
    return packages


def setup_packages():
    """Returns the packages of tools/packages.sh."""
    listed = subprocess.run([ROOT / "tools/packages.sh", "--names"], check=True, capture_output=True, text=True)
    return listed.stdout.split()


def names(field):
    """Returns the groups of alternatives of a field such as Depends: [["a"], ["b", "c"]]."""
    groups = (group.split("|") for group in field.split(",") if group.strip())
    return [[re.match(r"\s*([^\s:(]+)", name).group(1) for name in group] for group in groups]


def with_dependencies(wanted, packages):
    """Returns the installed ones of the packages and their dependencies; of alternatives the first installed one."""
    providers = {}
    for name, fields in packages.items():
        for (provided,) in names(fields.get("Provides", "")):
            providers.setdefault(provided, []).append(name)
    known, waiting = set(), [name for name in wanted if name in packages]
    while waiting:
        name = waiting.pop()
        if name in known:
            continue
        known.add(name)
        fields = packages[name]
        for group in names(fields.get("Depends", "")) + names(fields.get("Pre-Depends", "")):
            candidates = [n for choice in group for n in [choice] * (choice in packages) + providers.get(choice, [])]
            if candidates and not known.intersection(candidates):
                waiting.append(candidates[0])
    return known


def known_packages(packages, setup, optional=OPTIONAL):
    """Returns the installed packages of a bare system, of `setup` and of the optional packages."""
    bare = [n for n, f in packages.items() if f.get("Essential") == "yes" or f.get("Priority") == "required"]
    known = set()
    for wanted in (bare, BARE, setup, optional):
        known |= with_dependencies([*known, *wanted], packages)
    return known


def files_of(package):
    for listing in [*DPKG.glob(f"info/{package}.list"), *DPKG.glob(f"info/{package}:*.list")]:
        yield from listing.read_text().splitlines()
