#!/usr/bin/env bash
# Runs the tests of a sanitizer build: sanitized_tests.sh asan|tsan [arguments of ctest].
# With --core runs only the tests of comm with ranks as threads, which start no processes.
# LibTorch is not instrumented: the thread sanitizer does not see its locks, so it must ignore its accesses.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=$1
shift
core='Collectives/OnThreads.*:ThreadFailures.*:Work.*:Shared*.*:SequenceCounter.*:EncodedSum.*:Hierarchical.*:Worker.*-*Process*:SharedMemory.*:*IsRefused*'
export ASAN_OPTIONS=detect_stack_use_after_return=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export TSAN_OPTIONS=ignore_noninstrumented_modules=1:second_deadlock_stack=1:suppressions=$PWD/tools/tsan.supp
# GCC 12's thread sanitizer does not support the address randomization of newer kernels, so it is turned off.
if [[ ${1:-} == --core ]]; then
  # With a timeout, in case of a deadlock.
  OMP_NUM_THREADS=1 setarch --addr-no-randomize timeout 600 "build-$preset/tests/test_comm" --gtest_brief=1 \
    --gtest_filter="$core"
  exit
fi
setarch --addr-no-randomize ctest --preset "$preset" --no-tests=error -L sanitized "$@"
