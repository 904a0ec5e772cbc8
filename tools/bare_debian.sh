#!/usr/bin/env bash
# Checks that ./dev works on a machine with only git and bash: makes a bare Debian 12 in a temporary folder, clones the
# last commit into it, runs ./dev there and removes the folder. Needs root and debootstrap.
#   tools/bare_debian.sh [--working-tree] VERB [arguments of ./dev]
#   tools/bare_debian.sh [--working-tree] --run COMMAND [arguments]     another command, run in the clone
# --working-tree copies the current files instead. Uses DEBIAN_MIRROR, pip's variables (PIP_*), those of proxies and this
# machine's certificate authorities. Sets CLONED_AT to the time of the clone (seconds since 1970).
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Mounts are in a separate mount namespace, so the kernel removes them in every case.
main() {
  ((EUID == 0)) || fail "Run this as root: it makes a root file system."
  command -v debootstrap >/dev/null || fail "Install debootstrap first."
  (($# > 0)) || fail "Usage: tools/bare_debian.sh [--working-tree] VERB [arguments] | --run COMMAND [arguments]"
  tree=$(mktemp -d "${TMPDIR:-/tmp}/bare.XXXXXX")
  trap 'rm -rf --one-file-system "$tree"' EXIT
  chmod 755 "$tree"
  unshare --mount --pid --fork --kill-child "${BASH_SOURCE[0]}" --inside "$tree" "$@"
}

inside() {
  local tree=$1 source=commit program=(./dev) cloned_at settings
  shift
  if [[ ${1:-} == --working-tree ]]; then source=working_tree && shift; fi
  if [[ ${1:-} == --run ]]; then program=() && shift; fi
  (($# > 0)) || fail "Missing argument: a command."
  debootstrap --variant=minbase --include=git bookworm "$tree" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} >&2
  cp --dereference /etc/resolv.conf "$tree/etc/resolv.conf"
  echo '127.0.0.1 localhost' >"$tree/etc/hosts"  # an installation has this line, debootstrap does not write it
  mkdir -p "$tree/usr/local/share/ca-certificates" "$tree/tutti"
  find /usr/local/share/ca-certificates -name '*.crt' -exec cp {} "$tree/usr/local/share/ca-certificates" ';'
  cloned_at=$EPOCHREALTIME
  "copy_$source" "$tree/tutti"
  mount -t proc proc "$tree/proc"
  mount --rbind /dev "$tree/dev"
  mount --rbind /sys "$tree/sys"
  mapfile -t settings < <(env | grep -E '^(PIP_|TORCH_VERSION=|CMAKE_BUILD_PARALLEL_LEVEL=|[A-Za-z]+_(proxy|PROXY)=)' || true)
  # shellcheck disable=SC2016  # expands inside
  time chroot "$tree" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
    CLONED_AT="$cloned_at" "${settings[@]}" bash -c 'cd /tutti && exec "$@"' bash "${program[@]}" "$@" </dev/null
}

copy_commit() {
  git clone --quiet --no-hardlinks "$repository" "$1"
}

copy_working_tree() {
  git -C "$repository" ls-files -co --exclude-standard -z | tar -C "$repository" -c --null -T - | tar -C "$1" -x
}

fail() {
  echo "$1" >&2
  exit 1
}

if [[ ${1:-} == --inside ]]; then shift && inside "$@"; else main "$@"; fi
