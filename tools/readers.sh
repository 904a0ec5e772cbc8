#!/usr/bin/env bash
# Prints the Python of an environment with reference readers of tutti's files, for tests. Makes it if needed.
#   TUTTI_READERS_PYTHON=$(tools/readers.sh) ctest --preset release -R checkpoint
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/python.sh
folder=$PWD/.deps/readers
# The packages in the second line are for torch.export.
python_packages "$folder" numpy safetensors tensorboard \
  sympy filelock networkx jinja2 fsspec
echo "$folder/bin/python"
