#!/usr/bin/env bash
# Prints the Python of an environment with reference readers of tutti's files, for tests. Makes it if needed.
#   TUTTI_READERS_PYTHON=$(tools/readers.sh) ctest --preset release -R checkpoint
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/python.sh
folder=$PWD/.deps/readers
# The packages in the second line are for torch.export.
packages="numpy safetensors tensorboard
sympy filelock networkx jinja2 fsspec"

if [[ ! -e $folder/complete || $(<"$folder/complete") != "$packages" ]]; then
  python_venv "$folder"
  # shellcheck disable=SC2086
  "$folder/bin/pip" install --no-cache-dir $packages >&2
  echo "$packages" >"$folder/complete"
fi
echo "$folder/bin/python"
