#!/usr/bin/env bash
# Prints the Python of an environment with PyTorch and Accelerate, the peers in the benchmarks, and the models of
# torchvision and transformers. Makes it if needed: more than 5 GB, because PyTorch's wheel depends on all CUDA libraries.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/python.sh
version=${TORCH_VERSION:-2.15.0}
folder=$PWD/.deps/peers
packages=("torch==$version" accelerate==1.15.0 transformers==5.23.0 torchvision torchdata==0.11.0 numpy expecttest)
# Each release of torchvision requires one PyTorch release, so pip chooses the matching torchvision.
[[ $version != 2.15.0 ]] || packages[3]+="==0.29.2"

python_packages "$folder" "${packages[@]}"
echo "$folder/bin/python"
