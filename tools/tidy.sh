#!/usr/bin/env bash
# Runs clang-tidy over the sources that differ from the last commit, or over all of them with --all. Needs the configured folder build-tidy.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "${BASH_SOURCE[0]}")/.."

changed() {
  git ls-files --others --exclude-standard
  git diff --name-only --diff-filter=d HEAD
}

if [[ ${1:-} == --all ]]; then names=$(git ls-files -co --exclude-standard); else names=$(changed); fi
mapfile -t files < <(grep -E '^(src|cmd|python|examples|bench|tests)/.*\.cpp$' <<<"$names" | sort -u)
echo "clang-tidy: ${#files[@]} files"
((${#files[@]} == 0)) || printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy -p build-tidy --quiet
