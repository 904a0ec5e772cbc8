#pragma once
// A StateDict of one rank, given to all.
#include <functional>

#include "tutti/comm/communicator.h"
#include "tutti/state/state_dict.h"

namespace tutti {

/// What `of_rank_0` returns on rank 0, which alone calls it; tensors come out on the CPU. Every rank must call it.
/// Throws what on_all_ranks() does, on all ranks, where `of_rank_0` throws.
StateDict broadcast_state(const Communicator& communicator, const std::string& name,
                          const std::function<StateDict()>& of_rank_0);

}  // namespace tutti
