#!/usr/bin/env bash
# Installs the system packages that the build needs, and those named as arguments. Does nothing if all are installed.
#   tools/packages.sh --names     only prints what the build needs
#   tools/packages.sh --headers   prints the headers by which a system without apt is checked
set -euo pipefail

packages=(python3 python3-venv libpython3-dev g++ cmake ninja-build ccache libcli11-dev nlohmann-json3-dev libgtest-dev
  libgmock-dev libssl-dev iproute2 ca-certificates)
headers=(openssl/ssl.h CLI/CLI.hpp nlohmann/json.hpp gtest/gtest.h gmock/gmock.h)
oldest_cmake=3.25
[[ ${1:-} != --names ]] || { printf '%s\n' "${packages[@]}"; exit; }
[[ ${1:-} != --headers ]] || { printf '%s\n' "${headers[@]}"; exit; }
packages+=("$@")

with_apt() {
  local missing
  missing=$(comm -23 <(printf '%s\n' "${packages[@]}" | sort) <(installed | sort))
  [[ -n $missing ]] || return 0
  mapfile -t missing <<<"$missing"
  local root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || { echo "As root, run: apt-get install ${missing[*]}" >&2; return 1; }
    root=(sudo)
  fi
  echo "Installing ${missing[*]}" >&2
  # sudo does not pass these on.
  local settings
  mapfile -t settings < <(env | grep -iE '^(https?|ftp|all|no)_proxy=' || true)
  "${root[@]}" env "${settings[@]}" apt-get update -q >&2
  "${root[@]}" env "${settings[@]}" DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
    "${missing[@]}" >&2 </dev/null
}

installed() {
  dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null | sed -n 's/^installed //p'
}

# On other systems it cannot install packages, but it names the missing ones.
without_apt() {
  local name missing=()
  for name in python3 g++ cmake ninja; do
    command -v "$name" >/dev/null || missing+=("$name")
  done
  for name in "${headers[@]}"; do
    echo "#include <$name>" | g++ -x c++ -E - >/dev/null 2>&1 || missing+=("<$name>")
  done
  python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=("python3's venv")
  ((${#missing[@]} == 0)) && return 0
  echo "Not found: ${missing[*]}" >&2
  echo "Install the equivalents of Debian's ${packages[*]}" >&2
  return 1
}

# An older CMake says only that it cannot read CMakePresets.json.
check_cmake() {
  local version
  version=$(cmake --version | sed -n 's/^cmake version //p')
  [[ $(printf '%s\n' "$oldest_cmake" "$version" | sort -V | sed -n 1p) == "$oldest_cmake" ]] ||
    { echo "CMake $version is too old: tutti needs $oldest_cmake or later. \`pip install cmake\` has a newer one." >&2; return 1; }
}

if command -v apt-get >/dev/null && command -v dpkg-query >/dev/null; then with_apt; else without_apt; fi
check_cmake
