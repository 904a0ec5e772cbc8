#!/usr/bin/env bash
# Gloo's headers come from the distribution and are older than the Gloo inside libtorch_cpu.so. A Gloo object that our
# code creates, or a Gloo function that it emits or calls, would be incompatible. Fails if an object file below BUILD has
# one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

found=$(find "$1" -name '*.o' -exec nm --print-file-name {} + |
  grep -E ' [TtWVUu] .*GlooStore| [TtWVUu] _Z(T[IVS])?NK?4gloo' | c++filt || true)
[[ -z $found ]] || { echo "$found" >&2; echo "These Gloo symbols are incompatible with the Gloo of LibTorch." >&2; exit 1; }
