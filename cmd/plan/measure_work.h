#pragma once
// What a step of the example takes here.
#include "example.h"
#include "plan/description.h"
#include "tutti/comm/communicator.h"

namespace tutti::plan {

/// Takes `steps` steps without an exchange, all ranks of `together` at the same time, and returns the medians of all.
/// Every rank must call it.
Work measure_work(const Example& example, int steps, const Communicator& together);

}  // namespace tutti::plan
