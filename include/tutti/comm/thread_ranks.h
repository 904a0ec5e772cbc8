#pragma once
// Ranks as threads of one process: for DataParallel and for tests.
#include <chrono>
#include <functional>
#include <vector>

#include "tutti/comm/communicator.h"

namespace tutti {

/// `size` communicators that belong together; each may be used by a thread of its own. `num_nodes` pretends that the
/// ranks live on that many nodes (size must be divisible by it). CommunicatorOptions::backend may ask for
/// "shared_memory" or "hierarchical"; otherwise messages are copies from thread to thread.
std::vector<Communicator> make_thread_communicators(int size, const CommunicatorOptions& options = {},
                                                    int num_nodes = 1);

/// Runs `body` once per rank, each in a thread of its own, and waits for all. If any threw, rethrows the exception of
/// the rank that failed first.
void run_thread_ranks(int size, const std::function<void(Communicator)>& body, const CommunicatorOptions& options = {},
                      int num_nodes = 1);

}  // namespace tutti
