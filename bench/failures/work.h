#pragma once
// The work of the ranks during which one of them fails.
#include <tutti/comm/communicator.h>

#include <functional>
#include <string>

namespace tutti::bench {

/// Returns a function that runs one step of "collectives", "training", "local_sgd" or "checkpoints". Every rank must
/// call work_of() and each step.
std::function<void()> work_of(const std::string& name, const Communicator& communicator);

}  // namespace tutti::bench
