#!/usr/bin/env bash
# Prints the Python of an environment with the readers of tutti's files, which tests compare with; makes it once.
#   TUTTI_READERS_PYTHON=$(tools/readers.sh) ctest --preset release -R checkpoint
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/python.sh
folder=$PWD/.deps/readers
# Those in the second line are what torch.export needs besides.
packages="numpy safetensors tensorboard
sympy filelock networkx jinja2 fsspec"

if [[ ! -e $folder/complete || $(<"$folder/complete") != "$packages" ]]; then
  python_venv "$folder"
  # shellcheck disable=SC2086
  "$folder/bin/pip" install --no-cache-dir $packages >&2
  echo "$packages" >"$folder/complete"
fi
echo "$folder/bin/python"
