#!/usr/bin/env bash
# Times the first commands of README for a new user: makes a bare Debian 12 (git and bash only), clones the last commit into
# it, and measures there on two cores without caches. Needs root, debootstrap, and about an hour.
#   tools/first_light.sh [PART ...] >table.md
# The parts: train, test, change (the tests of one module after a change of a header), headers (their compile time), guides
# (the steps of docs/from_zero.md, and each guide's program, outside the clone), and packages (tutti in another project, in
# README's three ways: about 20 GB for a complete PyTorch and builds). Default: the first four.
# Prints the table to standard output, everything else to standard error. The exit code is 0 if all commands succeeded; the
# table compares their times with the targets. docs/first_light.md has such tables.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

for part; do
  [[ $part =~ ^(train|test|change|headers|guides|packages)$ ]] ||
    { echo "Usage: tools/first_light.sh [train] [test] [change] [headers] [guides] [packages]" >&2; exit 2; }
done

# The first two cores that this process may use, as taskset takes them.
two_cores() {
  local ranges range core cores=()
  IFS=, read -ra ranges <<<"$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)"
  for range in "${ranges[@]}"; do
    for ((core = ${range%-*}; core <= ${range#*-} && ${#cores[@]} < 2; ++core)); do cores+=("$core"); done
  done
  (IFS=, && echo "${cores[*]}")
}

exec taskset --cpu-list "$(two_cores)" "$here/bare_debian.sh" --run tools/first_light_inside.sh "$@"
