#pragma once
#include <memory>

#include "comm/shm/node_state.h"

namespace tutti::comm {

/// The failures of a channel, in its own memory: word of them can be had for as long as somebody maps it, whoever has
/// ended meanwhile. A rank leaves its word once, before it closes the channel.
std::shared_ptr<FailureBoard> make_shm_failure_board(std::shared_ptr<NodeState> node);

}  // namespace tutti::comm
