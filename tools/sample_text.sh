#!/usr/bin/env bash
# Prints the folder of the C++ standard library's headers: training text that every build machine has.
set -euo pipefail
echo '#include <vector>' | g++ -x c++ -E - | sed -n 's|^# 1 "\(/.*\)/vector".*|\1|p'
