#pragma once
// Work that succeeds on all ranks or fails on all of them.
#include <functional>
#include <string>
#include <vector>

#include "tutti/comm/communicator.h"

namespace tutti::checkpoint {

/// Runs `work` on every rank and returns what it returned, by rank. When it threw anywhere, every rank throws, after
/// all have ended: UsageError when only such were thrown, else CheckpointError, naming the ranks and what went wrong
/// there. `name` names the step for a rank that does not come.
std::vector<std::string> on_all_ranks(const Communicator& communicator, const std::string& name,
                                      const std::function<std::string()>& work);

}  // namespace tutti::checkpoint
