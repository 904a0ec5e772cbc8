#!/usr/bin/env bash
# Runs clang-tidy over the sources that differ from the last commit, or over all of them with --all. Needs the configured folder build-tidy.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

sources() {
  if [[ ${1:-} == --all ]]; then git ls-files -co --exclude-standard; else changed; fi |
    grep -E '^(src|cmd|examples|bench|tests)/.*\.cpp$' | sort -u || true
}

changed() {
  git diff --name-only --diff-filter=d HEAD 2>/dev/null || true
  git ls-files --others --exclude-standard
}

mapfile -t files < <(sources "$@")
echo "clang-tidy: ${#files[@]} files"
((${#files[@]} == 0)) || printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy -p build-tidy --quiet
