#!/usr/bin/env bash
# The measurements of first_light.sh, in a fresh clone on a bare system, as root. CLONED_AT is the time of the clone.
# It changes the clone and the system: do not run it on a machine in use.
# shellcheck disable=SC2016  # backquotes in the table's words are the table's
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec 3>&1 1>&2  # only the table goes to standard output
rows=()
failed=0
scratch=$(mktemp -d)
readonly first_step_line='^(\[rank 0\] )?step [0-9]+/'

main() {
  cloned_at=${CLONED_AT:-$EPOCHREALTIME}
  (($# > 0)) || set -- train test change headers
  local part
  for part; do "measure_$part"; done
  table >&3
  return "$failed"
}

# run COMMAND...: sets `code` to the exit code, `seconds` to the time, and `cpu` to the CPU seconds.
run() {
  echo "== $*"
  local TIMEFORMAT='%R %U %S' user system
  { time "$@" 2>&4; } 4>&2 2>"$scratch/time" && code=0 || code=$?
  read -r seconds user system < <(tail -n1 "$scratch/time")
  cpu=$(sum "$user" "$system")
  ((code == 0)) || failed=1
  echo "== $*: exit code $code, $seconds s, $cpu s of CPU"
}

# row WHAT SECONDS CPU GOAL: adds a line to the table. A failed command has its exit code in place of figures.
row() {
  if ((code == 0)); then
    rows+=("| $1 | $(whole "$2") | $(whole "$3") | $4 |")
  else
    rows+=("| $1 | exit code $code | | $4 |")
  fi
}

measure_train() {
  rm -f "$scratch/first_step"
  run stamped_train
  local first_step='' end=$EPOCHREALTIME
  if [[ -e $scratch/first_step ]]; then
    first_step=$(difference "$(<"$scratch/first_step")" "$cloned_at")
  elif ((code == 0)); then
    echo "./dev train succeeded, but printed no step" && code=1 failed=1
  fi
  row 'from the clone to the first step of `./dev train`' "$first_step" '' 360
  row 'from the clone to the end of `./dev train`' "$(difference "$end" "$cloned_at")" "$cpu" 600
}

# `./dev train`. The time of its first line with a step is written to a file.
stamped_train() {
  ./dev train 2>&1 | while IFS= read -r line; do
    if [[ $line =~ $first_step_line && ! -e $scratch/first_step ]]; then echo "$EPOCHREALTIME" >"$scratch/first_step"; fi
    printf '%s\n' "$line"
  done
}

measure_test() {
  run ./dev test
  row '`./dev test`' "$seconds" "$cpu" 1500
}

# A changed time stamp would not defeat a compiler cache, so the header gets one more declaration.
measure_change() {
  local header
  header=$(git ls-files 'include/*/sync/reducer.h')
  printf '\nnamespace tutti {\nclass DeclaredByFirstLight;\n}  // namespace tutti\n' >>"$header"
  run ./dev test -R sync
  git checkout --quiet -- "$header"
  row "\`./dev test -R sync\` after a change in $header" "$seconds" "$cpu" 180
}

# The CPU seconds to compile a source file with this one include, the smaller of two.
measure_headers() {
  local header round libtorch
  local -A least=()
  tools/packages.sh
  libtorch=$(tools/libtorch.sh)
  for round in 1 2; do
    for header in torch/torch.h tutti/tutti.h; do
      printf '#include <%s>\nint main() {}\n' "$header" >"$scratch/header.cpp"
      run g++ -std=c++20 -O3 -DNDEBUG -DUSE_DISTRIBUTED -DUSE_C10D_GLOO -Iinclude -isystem "$libtorch/include" \
        -isystem "$libtorch/include/torch/csrc/api/include" -c "$scratch/header.cpp" -o "$scratch/header.o"
      if [[ $round == 1 ]] || less "$cpu" "${least[$header]}"; then least[$header]=$cpu; fi
    done
  done
  row 'compiling a file that includes `<torch/torch.h>`' '' "${least[torch/torch.h]}" ''
  row 'compiling a file that includes `<tutti/tutti.h>`' '' "${least[tutti/tutti.h]}" \
    "$(whole "${least[torch/torch.h]}") of CPU"
}

# A new user's folder outside the clone with the files of docs/from_zero.md; then the same with each guide's program.
measure_guides() {
  local mine=$scratch/mine guide arguments
  tools/packages.sh
  run ./dev install --prefix /opt/first
  row 'from zero: `./dev install`' "$seconds" "$cpu" ''
  mkdir -p "$mine"
  block '```cmake' docs/from_zero.md >"$mine/CMakeLists.txt"
  block '<!-- snippet: program first_program -->' docs/from_zero.md | sed '/^```/d' >"$mine/train.cpp"
  run own_program "$mine"
  row 'from zero: the page'"'"'s program, on one process and on two' "$seconds" "$cpu" ''
  echo "target_include_directories(train PRIVATE $PWD/examples)" >>"$mine/CMakeLists.txt"
  for guide in gradient_accumulation same_result local_sgd train_step several_machines from_accelerate; do
    cp "examples/guides/$guide.cpp" "$mine/train.cpp"
    arguments=()
    [[ $guide != train_step && $guide != several_machines ]] || arguments=("$scratch/$guide")
    run own_program "$mine" "${arguments[@]}"
    row "the program of docs/guides/$guide.md, on one process and on two" "$seconds" "$cpu" ''
  done
}

# block LINE FILE: prints the text between LINE and the next ``` at the start of a line.
block() {
  awk -v begin="$1" 'found && /^```$/ { exit } found { print } $0 == begin { found = 1 }' "$2"
}

# own_program FOLDER [argument]: builds and runs a program as in docs/from_zero.md, with tutti in /opt/first. Each run gets
# a new folder as its argument.
own_program() {
  local folder=$1 PATH=/opt/first/bin:$PATH
  shift
  cmake -G Ninja -S "$folder" -B "$folder/build" -DCMAKE_PREFIX_PATH=/opt/first &&
    cmake --build "$folder/build" &&
    "$folder/build/train" ${1:+"$1-one"} &&
    tutti launch -n 2 -- "$folder/build/train" ${1:+"$1-two"}
}

measure_packages() {
  local libtorch python=/opt/python/bin/python version
  tools/packages.sh
  libtorch=$(tools/libtorch.sh)
  version=$(sed -n 's/^#define TORCH_VERSION_[MP][A-Z]* //p' "$libtorch/include/torch/headeronly/version.h" | paste -sd.)

  run ./dev install --prefix /opt/tutti
  row 'installed: `./dev install`' "$seconds" "$cpu" ''
  consumer find_package "$libtorch" -DPREFIX=/opt/tutti
  row 'installed: a program finds it, builds and runs on two ranks' "$seconds" "$cpu" ''
  run ./dev package
  row 'installed: `./dev package`' "$seconds" "$cpu" ''
  run dpkg --install build/packages/tutti_*.deb
  if ((code == 0)); then consumer find_package "$libtorch" -DPREFIX=/usr; fi
  row 'installed: the same program with the .deb' "$seconds" "$cpu" ''

  consumer subproject "$libtorch" -DFULL=ON -DTUTTI_GIT="$PWD" -DTUTTI_GIT_TAG="$(git rev-parse HEAD)"
  row 'a part of the project: FetchContent from git, all of it built, two ranks' "$seconds" "$cpu" ''

  run whole_torch "$version"
  row "with Python's LibTorch: \`pip install torch==$version\`" "$seconds" "$cpu" ''
  ((code == 0)) || return 0
  libtorch=$("$python" -c 'import torch; print(torch.__path__[0])')
  run env LIBTORCH="$libtorch" ./dev install --prefix /opt/tutti-python
  row "with Python's LibTorch: \`LIBTORCH=... ./dev install\`" "$seconds" "$cpu" ''
  export TUTTI_PEERS_PYTHON=$python
  consumer python_libtorch "$libtorch" -DPREFIX=/opt/tutti-python
  if grep -q '^skipped:' "$scratch/said"; then code=77 failed=1; fi
  row "with Python's LibTorch: a program, and a library in that Python" "$seconds" "$cpu" ''
}

# consumer TEST LIBTORCH -DNAME=value...: one test of tests/install, with the tools of this system.
consumer() {
  local test=$1 libtorch=$2 version
  shift 2
  version=$(sed -n 's/^#define TORCH_VERSION_M[A-Z]* //p' "$libtorch/include/torch/headeronly/version.h" | paste -sd.)
  run said cmake -DGENERATOR=Ninja -DMAKE_PROGRAM="$(command -v ninja)" -DCOMPILER="$(command -v c++)" -DLAUNCHER= \
    -DLIBTORCH="$libtorch" -DLIBTORCH_VERSION="$version" -DSCRATCH="$scratch/$test" "$@" \
    -P "tests/install/${test}_test.cmake"
}

said() {
  "$@" 2>&1 | tee "$scratch/said"
}

whole_torch() {
  python3 -m venv /opt/python &&
    /opt/python/bin/pip install --no-cache-dir "torch==$1" numpy
}

table() {
  local model memory
  model=$(sed -n '/^model name/{s/.*: //p;q}' /proc/cpuinfo)
  memory=$(awk '/^MemTotal/ { printf "%.0f", $2 / 1048576 }' /proc/meminfo)
  echo "Commit $(git rev-parse --short HEAD), $(nproc) cores of ${model:-an unnamed processor}, $memory GiB of memory," \
    "$(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release), nothing cached, downloads included:"
  echo
  echo '| | seconds | CPU seconds | goal, seconds |'
  echo '|---|---|---|---|'
  printf '%s\n' "${rows[@]}"
}

sum() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.1f", a + b }'; }
difference() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.1f", a - b }'; }
less() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a < b) }'; }
whole() { [[ -z $1 ]] || awk -v a="$1" 'BEGIN { printf "%.0f", a }'; }

trap 'rm -rf "$scratch"' EXIT
main "$@"
