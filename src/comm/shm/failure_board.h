#pragma once
#include <memory>

#include "comm/shm/node_state.h"

namespace tutti::comm {

/// The failure board of a communicator, in the shared memory of its ranks. A report stays readable while any process
/// maps the memory, even after the process of the report has exited. A rank publishes one report, before it closes the
/// communicator.
std::shared_ptr<FailureBoard> make_shm_failure_board(std::shared_ptr<NodeState> node);

}  // namespace tutti::comm
