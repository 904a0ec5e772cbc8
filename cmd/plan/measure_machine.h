#pragma once
// What this machine can do: sums in shared memory, and messages.
#include "plan/description.h"
#include "tutti/core/environment.h"

namespace tutti::plan {

/// Two ranks of this machine try it. Each of them must call it.
Machine measure_machine(const Environment& environment);

}  // namespace tutti::plan
