#pragma once
// What the ranks do while one of them fails.
#include <tutti/comm/communicator.h>

#include <functional>
#include <string>

namespace tutti::bench {

/// One step of "collectives", "training", "local_sgd" or "checkpoints". Every rank must call it, and the steps.
std::function<void()> work_of(const std::string& name, const Communicator& communicator);

}  // namespace tutti::bench
