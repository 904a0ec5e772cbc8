#pragma once
// Work that succeeds on all ranks or fails on all ranks.
#include <functional>
#include <string>
#include <vector>

#include "tutti/comm/communicator.h"

namespace tutti::checkpoint {

/// Runs `work` on every rank and returns the results by rank. Every rank must call it. If `work` throws on any rank,
/// all ranks throw after all have ended: UsageError or DamagedCheckpointError if every error is one, else
/// CheckpointError. The message has each error once, with its ranks. `name` names the collective in a timeout.
std::vector<std::string> on_all_ranks(const Communicator& communicator, const std::string& name,
                                      const std::function<std::string()>& work);

}  // namespace tutti::checkpoint
