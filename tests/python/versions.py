"""The error for another version of torch than the package was built for."""

import torch

from torch_tutti import _build, _torch_version

assert _torch_version.why_not(torch.__version__) is None
assert _torch_version.why_not(_build.torch_minor + ".7+cpu") is None
for other in ("2.14.1", "3.0.0", "2.150.0", "2.1.5"):
    problem = _torch_version.why_not(other)
    assert problem and other in problem and _build.torch_minor in problem, problem
torch.__version__ = "2.14.1"
try:
    _torch_version.check()
except ImportError as error:
    assert "2.14" in str(error)
else:
    raise SystemExit("another torch was taken")
