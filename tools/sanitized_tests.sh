#!/usr/bin/env bash
# Runs the comm and sync tests of a sanitizer build: sanitized_tests.sh asan|tsan [arguments of ctest].
# LibTorch itself is not instrumented: the thread sanitizer cannot see its locks and must not judge its accesses.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=$1
shift
export ASAN_OPTIONS=detect_stack_use_after_return=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export TSAN_OPTIONS=ignore_noninstrumented_modules=1:second_deadlock_stack=1:suppressions=$PWD/tools/tsan.supp
# The thread sanitizer of GCC 12 does not know how far newer kernels spread addresses: switch that off.
setarch --addr-no-randomize ctest --preset "$preset" --no-tests=error -L sanitized "$@"
