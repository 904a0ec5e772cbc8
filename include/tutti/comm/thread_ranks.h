#pragma once
// Ranks that are threads of one process, for tests.
#include <functional>
#include <vector>

#include "tutti/comm/communicator.h"

namespace tutti {

/// Returns the communicators of `size` ranks of one group, by rank. Each may be used by its own thread. The ranks
/// connect as processes do, with the same options and variables and with every backend but MPI. `num_nodes` simulates
/// that many nodes and must divide `size`. Throws UsageError, PeerError, TimeoutError.
std::vector<Communicator> make_thread_communicators(int size, const CommunicatorOptions& options = {},
                                                    int num_nodes = 1);

/// Runs `body` once per rank, each in its own thread, and waits for all. If a rank throws, rethrows the exception of
/// the rank that failed first.
void run_thread_ranks(int size, const std::function<void(Communicator)>& body, const CommunicatorOptions& options = {},
                      int num_nodes = 1);

}  // namespace tutti
