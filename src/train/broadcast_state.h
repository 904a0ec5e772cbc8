#pragma once
// Broadcasts a StateDict from rank 0.
#include <functional>

#include "tutti/comm/communicator.h"
#include "tutti/state/state_dict.h"

namespace tutti {

/// Returns the result of `of_rank_0`, which is called on rank 0 only. The returned tensors are on the CPU. Every rank
/// must call it. If `of_rank_0` throws, all ranks throw as on_all_ranks() does.
StateDict broadcast_state(const Communicator& communicator, const std::string& name,
                          const std::function<StateDict()>& of_rank_0);

}  // namespace tutti
