#!/usr/bin/env bash
# Prints the Python of an environment with the readers of tutti's files, which tests compare with; makes it once.
#   TUTTI_READERS_PYTHON=$(tools/readers.sh) ctest --preset release -R checkpoint
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/python.sh
folder=$PWD/.deps/readers

if [[ ! -e $folder/complete ]]; then
  python_venv "$folder"
  "$folder/bin/pip" install --no-cache-dir numpy safetensors tensorboard >&2
  touch "$folder/complete"
fi
echo "$folder/bin/python"
