#!/usr/bin/env bash
# Runs the tests of a sanitizer build: sanitized_tests.sh asan|tsan [arguments of ctest].
# With --core only what ranks as threads show of comm, without starting processes.
# LibTorch itself is not instrumented: the thread sanitizer cannot see its locks and must not judge its accesses.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=$1
shift
core='Collectives/OnThreads.*:ThreadFailures.*:Work.*:Shared*.*:EncodedSum.*:Hierarchical.*:SideStream.*:Worker.*-*Process*:SharedMemory.*:*IsRefused*'
export ASAN_OPTIONS=detect_stack_use_after_return=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export TSAN_OPTIONS=ignore_noninstrumented_modules=1:second_deadlock_stack=1:suppressions=$PWD/tools/tsan.supp
# The thread sanitizer of GCC 12 does not know how far newer kernels spread addresses: switch that off.
if [[ ${1:-} == --core ]]; then
  # A deadline, for what a deadlock would be.
  OMP_NUM_THREADS=1 setarch --addr-no-randomize timeout 600 "build-$preset/tests/test_comm" --gtest_brief=1 \
    --gtest_filter="$core"
  exit
fi
setarch --addr-no-randomize ctest --preset "$preset" --no-tests=error -L sanitized "$@"
