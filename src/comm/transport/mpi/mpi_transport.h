#pragma once
// Messages over MPI. The ranks meet, and leave word of failures, in the job's store as they do with Gloo.
#include <chrono>
#include <memory>

#include "comm/health/heartbeat_monitor.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/transport/transport.h"

namespace tutti::comm {

/// Connects the ranks of `pulse`, which met at `rendezvous`. Throws UsageError, on all ranks, where one of them has no
/// MPI, was not started by an MPI launcher, or has another rank in MPI than in the job.
std::shared_ptr<Transport> connect_mpi(const Rendezvous& rendezvous, int rank, GroupHealth health,
                                       std::chrono::milliseconds timeout);

}  // namespace tutti::comm
