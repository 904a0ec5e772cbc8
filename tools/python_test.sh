#!/usr/bin/env bash
# Tests tools/python.sh, without a network.
set -euo pipefail
functions=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/python.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
export PIP_NO_INDEX=1

# must_run COMMAND ... and must_fail COMMAND ... call the functions as scripts do, where a failure ends the script.
must_run() {
  bash -euo pipefail -c 'source "$0"; "$@"' "$functions" "$@" >output 2>&1 || fail "$* failed"
}

must_fail() {
  ! bash -euo pipefail -c 'source "$0"; "$@"' "$functions" "$@" >output 2>&1 || fail "$* succeeded"
}

fail() {
  printf 'python_test.sh: %s:\n%s\n' "$1" "$(<output)" >&2
  exit 1
}

must_run python_packages made pip
inode=$(stat -c %i made/bin/pip)
must_run python_packages made pip
[[ $(stat -c %i made/bin/pip) == "$inode" ]] || fail 'an environment was made twice'
mv made moved
must_run python_packages moved pip
moved/bin/pip --version >/dev/null || fail 'a moved environment was not made again'
must_fail python_packages moved no-such-package
must_fail python_packages moved no-such-package

must_fail fetch_once "$PWD/fetched" false
[[ -z $(compgen -G 'fetched*') ]] || fail 'a failed download left a folder'
mkdir fetched.abcdef
touch -d '2 days ago' fetched.abcdef
must_run fetch_once "$PWD/fetched" touch
[[ -d fetched && ! -e fetched.abcdef ]] || fail 'an old folder is left, or a download is not there'
must_run fetch_once "$PWD/fetched" false
