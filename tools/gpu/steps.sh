#!/usr/bin/env bash
# The first ten minutes on a machine with one GPU. Runs the programs of tools/gpu/pack.sh and prints a table: each step with
# its result and its seconds. The machine needs python3 with the PyTorch that the programs were built with; no network, no
# compiler. Writes table.md and steps.log to the folder in OUT, else to results/ beside this script.
#
#   tar -xzf tutti-gpu-cuda-2.11.0.tar.gz && tutti-gpu-cuda-2.11.0/steps.sh
#
# PYTHON is the Python with PyTorch (python3). LIBTORCH replaces the folder of that PyTorch. BUDGET is the limit in seconds
# of all steps together (600). Exits with 1 if a step fails. A step that NCCL refuses does not count as failed.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${OUT:-$here/results}
python=${PYTHON:-python3}
budget=${BUDGET:-600}
device=$(sed -n 's/^device=//p' "$here/packed")
packed_for=$(sed -n 's/^torch=//p' "$here/packed")
refusals='Duplicate GPU detected|ncclInvalidUsage'
refusable=
original_libraries=${LD_LIBRARY_PATH:-}  # for Python, which finds its libraries itself
failures=0

main() {
  mkdir -p "$out"
  log=$out/steps.log table=$out/table.md
  : >"$log"
  find_torch
  describe_machine >"$table"
  printf '| step | result | seconds | notes |\n|---|---|---|---|\n' >>"$table"
  cat "$table"

  row 'what is here' 30 describe_device
  tests 'one rank trains as on the CPU' 60 'OneRank.*:Checkpoint.*'
  tests 'no hidden wait in a step' 30 'HiddenWaits.*'
  tests 'two ranks on one device, staged' 90 'TwoRanks.*'
  tests 'SyncBatchNorm, Local SGD, DiLoCo, reproducible' 60 'Extras.*'
  row 'export of a model in Python' 90 env LD_LIBRARY_PATH="$original_libraries" "$python" "$here/export_model.py" "$out/model.pt2"
  tests 'the exported model trains as on the CPU' 30 'Exported.*' TUTTI_TEST_EXPORTED="$out/model.pt2"
  rm -f "$out/model.pt2"
  tests 'sums in flight at the end; a killed rank, staged' 60 'Ends.*'
  row 'the program of the guide, 2 ranks' 60 "$here/bin/tutti" launch -n 2 -- "$here/bin/guide_devices"
  tests 'rates of copies and staged sums' 60 'Rates.*'
  tests 'speed of a GPT of 163 million parameters, tutti' 90 'Speed.*'
  row 'speed of the same in PyTorch eager' 60 env LD_LIBRARY_PATH="$original_libraries" "$python" "$here/gpt_peer.py" ${small:+"$small"}
  if [[ $device = cuda ]]; then with_nccl; fi
  if [[ $device = cuda ]]; then sanitizer; fi

  # shellcheck disable=SC2016  # backquotes of Markdown
  printf '\n```\n%s\n```\n' "$(grep -hE '^(rate|speed|backend|device): |^backend ' "$log" | sort -u)" | tee -a "$table"
  echo "$failures failed, $SECONDS s; output of the steps: $log"
  ((failures == 0))
}

# LIBTORCH's libraries and CUDA's, for programs that are not Python.
find_torch() {
  local folder=${LIBTORCH:-} nvidia
  [[ -n $folder ]] || folder=$("$python" -c 'import torch; print(torch.__path__[0])') ||
    stop "$python cannot import torch: set PYTHON to the Python that has PyTorch $packed_for"
  local there
  there=$(sed -n 's/^#define TORCH_VERSION_\(MAJOR\|MINOR\|PATCH\) //p' "$folder/include/torch/headeronly/version.h" | paste -sd.)
  [[ $there = "$packed_for" ]] || stop "the programs need PyTorch $packed_for, and $folder is $there: pack with TORCH_VERSION=$there"
  nvidia=$(find "$folder/../nvidia" -maxdepth 2 -name lib -type d 2>/dev/null | paste -sd:)
  export LD_LIBRARY_PATH=$here/lib:$folder/lib${nvidia:+:$nvidia}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
  small=
  [[ $device = cuda ]] || small=--small
  local missing
  missing=$(ldd "$here"/bin/* | grep 'not found' | sort -u)
  [[ -z $missing ]] || stop "libraries are missing:"$'\n'"$missing"
}

describe_machine() {
  echo "Commit $(sed -n 's/^commit=//p' "$here/packed"), PyTorch $packed_for, $(nproc --all) cores," \
    "device $device$([[ $device != cuda ]] || timeout 30 nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sed 's/^/: /')."
  echo
}

describe_device() {
  [[ $device = cuda ]] || { echo 'the simulated device'; return; }
  timeout 30 nvidia-smi
  LD_LIBRARY_PATH=$original_libraries timeout 60 "$python" -c 'import torch; print("device:", torch.cuda.get_device_name(), torch.__version__, "NCCL", torch.cuda.nccl.version())'
}

# Two processes on one device. NCCL refuses that unless it is told otherwise; the notes say which way worked.
with_nccl() {
  local works=
  try_nccl NCCL_MULTI_RANK_GPU_ENABLE=1
  try_nccl TUTTI_TEST_HOSTID_PER_RANK=1 NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_SOCKET_IFNAME=lo
  [[ -z $works ]] && return
  # shellcheck disable=SC2086  # several variables
  tests 'sums in flight at the end; a killed rank, NCCL' 60 'Ends.*' TUTTI_TEST_NCCL=1 $works
}

# try_nccl VARIABLE=VALUE ...
try_nccl() {
  refusable=yes
  tests "two ranks on one device, NCCL with ${1%%=*}" 60 'TwoRanks.*' TUTTI_TEST_NCCL=1 "$@"
  refusable=
  [[ $result = passed ]] && works=$*
}

sanitizer() {
  local tool
  tool=$(command -v compute-sanitizer || true)
  if [[ -z $tool ]]; then add_row 'memory checks of compute-sanitizer' skipped 0 'not installed'; return; fi
  row 'memory checks of compute-sanitizer' 120 "$tool" --tool memcheck --error-exitcode 9 --target-processes all \
    "$here/bin/test_gpu" --gtest_filter=TwoRanks.Train*
}

# tests NAME LIMIT FILTER [VARIABLE=VALUE ...]: runs tests of test_gpu.
tests() {
  local name=$1 limit=$2 filter=$3
  shift 3
  row "$name" "$limit" env "$@" "$here/bin/test_gpu" "--gtest_filter=$filter"
}

# row NAME LIMIT COMMAND ...: runs the command for at most LIMIT seconds, and adds its row to the table. Sets `result`.
row() {
  local name=$1 limit=$2 output=$out/output start=$SECONDS status left=$((budget - SECONDS))
  shift 2
  if ((left < 5)); then result=skipped && add_row "$name" skipped 0 'no time left'; return; fi
  ((limit < left)) || limit=$left
  if [[ $(type -t "$1") = function ]]; then
    "$@" >"$output" 2>&1
  else
    timeout --kill-after=5 "$limit" "$@" >"$output" 2>&1
  fi
  status=$?
  result=$(judge "$status" "$output")
  [[ $result != failed && $result != 'timed out' ]] || failures=$((failures + 1))
  { printf '\n== %s: %s, exit code %s\n' "$name" "$result" "$status"; cat "$output"; } >>"$log"
  add_row "$name" "$result" $((SECONDS - start)) "$(notes "$output")"
  rm -f "$output"
}

# judge STATUS OUTPUT: prints the result. GoogleTest succeeds if a filter matches no test, which is a failure here.
judge() {
  local kind=failed
  ((SECONDS < budget)) || kind='timed out'
  case $1 in
    0) kind=passed ;;
    124 | 137) kind='timed out' ;;
    *) [[ -z $refusable ]] || ! grep -qE "$refusals" "$2" || kind=refused ;;
  esac
  if [[ $kind = passed ]] && grep -q '^\[==========\]' "$2"; then
    grep -q '^\[       OK \]' "$2" || kind=skipped
    grep -q '^\[ RUN      \]' "$2" || kind=failed
  fi
  echo "$kind"
}

# notes OUTPUT: prints the counts of tests and the first failed one.
notes() {
  local passed skipped failed
  passed=$(grep -c '^\[       OK \]' "$1") skipped=$(grep -c '^\[  SKIPPED \] .* ms)' "$1")
  failed=$(sed -n 's/^\[  FAILED  \] \([A-Za-z.]*\) (.*/\1/p' "$1" | head -n 3 | paste -sd' ')
  grep -q '^\[==========\]' "$1" || { tail -n 1 "$1" | cut -c1-100 | tr '|' '/'; return; }
  echo "$passed passed$( ((skipped == 0)) || echo ", $skipped skipped")${failed:+, failed: $failed}"
}

add_row() {
  printf '| %s | %s | %s | %s |\n' "$@" | tee -a "$table"
}

stop() {
  echo "steps.sh: $1" >&2
  exit 2
}

main
