#!/usr/bin/env bash
# Prints a Python that can `import torch` from the wheel of LibTorch, on the CPU. Makes it if needed.
#   TUTTI_TORCH_PYTHON=$(tools/torch_python.sh "$LIBTORCH") ctest --preset release -R checkpoint
#
# The wheel links to CUDA's libraries, 4 GB of packages, which tools/libtorch.sh does not install. This script makes an empty
# library for each of them, and one library that defines the symbols that PyTorch needs when it is loaded. Code for the CPU
# never calls them. Prints nothing if LibTorch is not from a wheel, or is from the wheel of another Python.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
libtorch=${1:?name the folder of LibTorch}
folder=$PWD/.deps/torch_python

main() {
  local reader
  reader=$(tools/readers.sh)  # it has the other packages that `import torch` needs
  if ! compgen -G "$libtorch/_C.$("$reader" -c 'import sys; print(sys.implementation.cache_tag)')-*.so" >/dev/null; then
    echo "$libtorch has no PyTorch for $("$reader" -V)" >&2
    return
  fi
  [[ -e $folder/complete && $(<"$folder/complete") == "$libtorch" ]] || make_stand_ins
  write_python "$reader"
  echo "$folder/python"
}

# Does not use CUDA libraries of this machine, because their versions may differ.
make_stand_ins() {
  rm -rf "$folder"
  mkdir -p "$folder/lib"
  local users name
  mapfile -t users < <(compgen -G "$libtorch/lib/libtorch_*.so")
  for user in "${users[@]}"; do readelf -d "$user"; done |
    sed -n 's/.*(NEEDED).*\[\(lib\(cu\|nccl\|nv\).*\)\]/\1/p' | sort -u | while read -r name; do
      [[ -n $(find -L "$libtorch/../nvidia" -name "$name" 2>/dev/null) ]] ||
        gcc -shared -Wl,-soname,"$name" -o "$folder/lib/$name" -x c - </dev/null
    done
  # Symbols without a version cannot be in a library with required versions. cuFile's symbols have none.
  for user in "${users[@]}"; do nm -D --undefined-only "$user"; done |
    sed -n 's/.* U \(\(cublas\|cudnn\|cufft\|cuFile\|cusolver\|cusparse\|nccl\|nvrtc\|nvshmem\)[^@]*\).*/\1/p' |
    sort -u | sed 's/.*/char &[8];/' |
    gcc -w -fno-builtin -shared -fPIC -Wl,-soname,libcufile.so.0 -o "$folder/lib/libcufile.so.0" -x c -
  echo "$libtorch" >"$folder/complete"
}

write_python() {
  cat >"$folder/python.new" <<END
#!/bin/sh
LD_LIBRARY_PATH="$folder/lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}" PYTHONPATH="${libtorch%/*}\${PYTHONPATH:+:\$PYTHONPATH}" exec "$1" "\$@"
END
  chmod +x "$folder/python.new"
  mv "$folder/python.new" "$folder/python"
}

main
