#pragma once
// What this machine can do: sums in shared memory, and messages.
#include "plan/description.h"
#include "tutti/core/environment.h"

namespace tutti::plan {

/// Two ranks try it; each of them must call it. On one node they try both, over loopback; on two nodes messages only,
/// over whatever links these.
Machine measure_machine(const Environment& environment);

}  // namespace tutti::plan
