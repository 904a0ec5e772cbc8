#!/usr/bin/env bash
# Builds the programs that tools/gpu/steps.sh runs on a machine with one GPU, and packs them with the few libraries that
# PyTorch's wheel lacks. Needs no GPU. Prints the name of the archive, which is smaller than 64 MiB.
#
#   tools/gpu/pack.sh                          # for PyTorch 2.11.0 with CUDA, the wheel of PyPI
#   TORCH_VERSION=2.15.0 tools/gpu/pack.sh
#   tools/gpu/pack.sh --device=sim             # the simulated device, from build/, to try the steps here
#
# CMAKE_BUILD_PARALLEL_LEVEL is the number of compilers, by default that of the cores.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/python.sh
export TORCH_VERSION=${TORCH_VERSION:-2.11.0} CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
programs=(tests/test_gpu bin/tutti bin/tutti-rank bin/guide_devices)
largest_mib=64

main() {
  local device=cuda build headers
  case ${1:-} in
    --device=sim) device=sim ;;
    --device=cuda | '') ;;
    *) fail "unknown argument $1: --device=cuda or --device=sim" ;;
  esac
  if [[ $device = sim ]]; then
    build=build
    LIBTORCH=$(sed -n 's/^LIBTORCH:PATH=//p' build/CMakeCache.txt)
    [[ -x build/tests/test_gpu ]] || fail "build/tests/test_gpu is missing: ./dev build test_gpu"
  else
    build=build-gpu-$TORCH_VERSION
    LIBTORCH=$(tools/libtorch.sh)
    headers=$(nccl_headers)
    compile "$build" "$headers"
  fi
  export LIBTORCH
  make_archive "$device" "$build"
}

# Prints the folder of the headers of the NCCL that the wheel was built with. The library is not kept: the machine with the
# GPU has it beside its PyTorch.
nccl_headers() {
  local folder=$PWD/.deps/nccl-$TORCH_VERSION
  fetch_once "$folder" fetch_nccl
  echo "$folder/nvidia/nccl/include"
}

# fetch_nccl FOLDER
fetch_nccl() {
  local nccl
  nccl=$(requirement nvidia-nccl)
  [[ -n $nccl ]] || fail "The wheel of PyTorch $TORCH_VERSION on PyPI is not built with CUDA."
  .deps/venv/bin/pip install --no-cache-dir --no-compile --no-deps --target "$1" "$nccl" >&2
  rm -r "$1/nvidia/nccl/lib"
}

# requirement NAME: prints the wheel's requirement that begins with NAME, such as nvidia-nccl-cu13==2.28.9.
requirement() {
  sed -n "s/^Requires-Dist: \($1[^; ]*\).*/\1/p" "${LIBTORCH%/*}/torch-$TORCH_VERSION"*.dist-info/METADATA
}

# compile BUILD NCCL_HEADERS: builds one level below this folder, as ./dev build, so that the compiler cache serves both.
compile() {
  # Most of CUDA's libraries, which libtorch_cuda.so needs, are not here.
  cmake --preset cuda -B "$1" -DLIBTORCH="$LIBTORCH" -DTUTTI_NCCL_HEADERS="$2" \
    -DCMAKE_EXE_LINKER_FLAGS=-Wl,--allow-shlib-undefined -DTUTTI_BUILD_BENCH=OFF >&2
  cmake --build "$1" --parallel "${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}" \
    --target test_gpu tutti_command tutti_rank guide_devices >&2
}

# make_archive DEVICE BUILD
make_archive() {
  local name=tutti-gpu-$1-$TORCH_VERSION folder library mib
  [[ $1 = cuda ]] || name=tutti-gpu-$1
  folder=build-gpu/$name
  rm -rf "$folder"
  mkdir -p "$folder/bin" "$folder/lib"
  cp "${programs[@]/#/$2/}" "$folder/bin"
  strip "$folder"/bin/*
  other_libraries "$folder"/bin/* | while read -r library; do cp -L "$library" "$folder/lib"; done
  cp tools/gpu/steps.sh tools/gpu/gpt_peer.py tools/gpu/export_model.py "$folder"
  printf 'device=%s\ntorch=%s\ncommit=%s\n' "$1" "$(release)" "$(git describe --always --dirty)" >"$folder/packed"
  tar -C build-gpu -czf "$folder.tar.gz" "$name"
  mib=$(($(stat -c %s "$folder.tar.gz") / 1024 / 1024))
  ((mib < largest_mib)) || fail "$folder.tar.gz has $mib MiB, more than $largest_mib"
  echo "$folder.tar.gz"
}

# The release of the LibTorch that the programs were built with.
release() {
  sed -n 's/^#define TORCH_VERSION_\(MAJOR\|MINOR\|PATCH\) //p' "$LIBTORCH/include/torch/headeronly/version.h" | paste -sd.
}

# other_libraries PROGRAM ...: prints the libraries that the programs name and that are neither the wheel's nor part of every
# Linux with g++. CUDA's libraries, which the wheel's libraries name, are left out, also if this machine has them.
other_libraries() {
  local name
  readelf -d "$@" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u |
    grep -v '^\(libc\|libm\|libdl\|libpthread\|librt\|libutil\|libgcc_s\|libstdc++\|ld-linux[^/]*\)\.so' |
    while read -r name; do
      [[ -e $LIBTORCH/lib/$name ]] || LD_LIBRARY_PATH=$LIBTORCH/lib ldd "$@" | awk -v name="$name" '$1 == name { print $3; exit }'
    done
}

fail() {
  echo "$1" >&2
  exit 1
}

main "$@"
