#!/usr/bin/env bash
# Formats the C++ sources with a pinned version of clang-format; --check changes nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/python.sh

python_packages .deps/venv clang-format==14.0.6

mapfile -t folders < <(ls -d include src cmd python examples bench tests 2>/dev/null)
mapfile -t files < <(find "${folders[@]}" -name '*.h' -o -name '*.cpp' | sort)
if [[ ${1:-} == --check ]]; then
  .deps/venv/bin/clang-format --dry-run -Werror "${files[@]}" || { echo 'Run ./dev format.' >&2; exit 1; }
else
  .deps/venv/bin/clang-format -i "${files[@]}"
fi
