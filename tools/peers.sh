#!/usr/bin/env bash
# Prints the Python of an environment with PyTorch and Accelerate, the peers in the benchmarks; makes it once.
# It takes more than 5 GB: PyTorch's wheel brings all CUDA libraries.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/python.sh
version=${TORCH_VERSION:-2.15.0}
folder=$PWD/.deps/peers

if [[ ! -e $folder/torch-$version ]]; then
  python_venv "$folder"
  "$folder/bin/pip" install --no-cache-dir "torch==$version" accelerate==1.15.0 numpy expecttest >&2
  touch "$folder/torch-$version"
fi
echo "$folder/bin/python"
