#!/usr/bin/env bash
# How long a newcomer waits: makes a bare Debian 12 (git and bash only), clones the last commit into it, and measures there,
# on two cores and with nothing cached, what README tells to type first. Needs root and debootstrap, and about an hour.
#   tools/first_light.sh [PART ...] >table.md
# The parts: train, test, change (the tests of one module after a change in a header), headers (what they cost), guides (what
# docs/from_zero.md says, and each guide's program, outside the clone), and packages (tutti taken into another project in
# README's three ways: about 20 GB for a whole PyTorch and builds). Without a name: the first four.
# The table goes to standard output, everything else to standard error. Exit code 0 when all commands succeeded; whether
# they were quick enough stands in the table. docs/first_light.md keeps such tables.
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
