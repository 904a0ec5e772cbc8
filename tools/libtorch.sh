#!/usr/bin/env bash
# Prints LibTorch's folder, the one that holds include/ and lib/: $LIBTORCH, or that of the pip wheel of $TORCH_VERSION,
# which is fetched into .deps once. Only the wheel and the two CUDA libraries that libtorch_cpu.so itself needs are
# installed: enough for C++, not for `import torch`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/python.sh
oldest=2.11

main() {
  if [[ -n ${LIBTORCH:-} ]]; then
    check "$LIBTORCH"
    echo "$LIBTORCH"
    return
  fi
  local version=${TORCH_VERSION:-2.15.0}
  not_older "$version" || fail "TORCH_VERSION=$version is too old: tutti needs LibTorch $oldest or later."
  local folder=$PWD/.deps/torch-$version
  fetch_once "$folder" fetch "$version"
  echo "$folder/torch"
}

check() {
  local header=$1/include/torch/headeronly/version.h version
  [[ -e $1/lib/libtorch_cpu.so ]] || fail "LIBTORCH=$1 holds no lib/libtorch_cpu.so."
  [[ -e $header ]] || fail "LIBTORCH=$1 is older than $oldest, or has no headers."
  version=$(sed -n 's/^#define TORCH_VERSION_M[A-Z]* //p' "$header" | paste -sd.)
  not_older "$version" || fail "LIBTORCH=$1 is LibTorch $version: tutti needs $oldest or later."
}

# fetch VERSION FOLDER
fetch() {
  local version=$1 part=$2 cuda
  pip_install "$part" --no-deps "torch==$version"
  cuda=$(sed -n 's/^Requires-Dist: cuda-toolkit\[.*\]==\([^; ]*\).*/cuda-toolkit[cudart,cupti]==\1/p' \
    "$part/torch-$version"*.dist-info/METADATA)
  [[ -z $cuda ]] || pip_install "$part" "$cuda"
  ! ldd "$part/torch/lib/libtorch_cpu.so" | grep 'not found' >&2 || fail "The wheel of torch $version needs these too."
}

pip_install() {
  .deps/venv/bin/pip install --no-cache-dir --no-compile --target "$@" >&2
}

not_older() {
  [[ $(printf '%s\n' "$oldest" "$1" | sort -V | head -n1) == "$oldest" ]]
}

fail() {
  echo "$1" >&2
  exit 1
}

main
