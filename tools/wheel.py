#!/usr/bin/env python3
"""Packs build/python/torch_tutti into a wheel: for the Python and the minor release of torch that it was built for.

    tools/wheel.py BUILD FOLDER         # prints the wheel's path
    tools/wheel.py --check PYTHON WHEEL # installs it into a fresh environment beside PYTHON's torch, and uses it there

No library of LibTorch is in it: the module takes those of the torch that is imported.
"""
import base64
import hashlib
import runpy
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = "torch_tutti"
WHEN = (2020, 1, 1, 0, 0, 0)  # the same files make the same wheel


def tags_of(module):
    """_C.cpython-311-x86_64-linux-gnu.so is for cp311 on linux_x86_64."""
    _, python, machine = module.name.split(".")[1].split("-")[:3]
    return f"cp{python}-cp{python}-linux_{machine}"


def metadata(version, minor):
    return (
        f"Metadata-Version: 2.1\nName: torch-tutti\nVersion: {version}\n"
        "Summary: A torch.distributed backend and a DistributedDataParallel that exchanges gradients once a step\n"
        f"License: Apache-2.0\nRequires-Python: >=3.10\nRequires-Dist: torch=={minor}.*\n"
        "Description-Content-Type: text/markdown\n\n" + (ROOT / "docs/guides/python.md").read_text()
    )


def record_line(path, content):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(content)}"


def pack(build, folder):
    package = build / "python" / NAME
    modules = list(package.glob("_C.*.so"))
    if len(modules) != 1:
        sys.exit(f"{package} holds no module: build the target torch_tutti")
    facts = runpy.run_path(str(package / "_build.py"))
    version, minor = f"{facts['version']}+torch{facts['torch_minor']}", facts["torch_minor"]
    tags, info = tags_of(modules[0]), f"{NAME}-{version}.dist-info"
    with tempfile.NamedTemporaryFile(suffix=".so") as stripped:
        subprocess.run(["strip", "--strip-unneeded", "-o", stripped.name, modules[0]], check=True)
        files = {f"{NAME}/{modules[0].name}": Path(stripped.name).read_bytes()}
    for source in sorted(package.glob("*.py")):
        files[f"{NAME}/{source.name}"] = source.read_bytes()
    files[f"{info}/METADATA"] = metadata(version, minor).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: tutti\nRoot-Is-Purelib: false\nTag: {tags}\n".encode()
    files[f"{info}/licenses/LICENSE"] = (ROOT / "LICENSE").read_bytes()
    lines = [record_line(path, content) for path, content in files.items()] + [f"{info}/RECORD,,"]
    files[f"{info}/RECORD"] = ("\n".join(lines) + "\n").encode()
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{NAME}-{version}-{tags}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, WHEN)
            entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return wheel


PROGRAM = """
import torch, torch.distributed as dist, torch_tutti
assert torch_tutti.__file__.startswith(__import__("sys").prefix), torch_tutti.__file__
dist.init_process_group("tutti", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
model = torch_tutti.DistributedDataParallel(torch.nn.Linear(2, 1))
model(torch.ones(1, 2)).sum().backward()
dist.destroy_process_group()
print("torch_tutti", torch_tutti.__version__, "beside torch", torch.__version__)
"""


def check(python, wheel):
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    torch_folder = subprocess.run([python, "-c", "import os, torch; print(os.path.dirname(torch.__path__[0]))"],
                                  check=True, text=True, capture_output=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        fresh = f"{folder}/bin/python"
        subprocess.run([fresh, "-m", "pip", "install", "-q", "--no-index", "--no-deps", wheel], check=True)
        packages = subprocess.run([fresh, "-c", where], check=True, text=True, capture_output=True).stdout.strip()
        # The fresh environment uses the torch of the other one, which takes gigabytes.
        Path(packages, "torch_of_another.pth").write_text(torch_folder + "\n")
        subprocess.run([fresh, "-c", PROGRAM], check=True)


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--check":
        check(sys.argv[2], sys.argv[3])
    elif len(sys.argv) == 3:
        print(pack(Path(sys.argv[1]), Path(sys.argv[2])))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
