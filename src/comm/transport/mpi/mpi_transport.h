#pragma once
// The MPI transport. The rendezvous and the failure reports use the coordinator, as over TCP.
#include <chrono>
#include <memory>

#include "comm/health/heartbeat_monitor.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/transport/transport.h"

namespace tutti::comm {

/// Connects the ranks of `health`, which met at `rendezvous`. Throws UsageError, on all ranks, where one of them has no
/// MPI, was not started by an MPI launcher, or has another rank in MPI than in the job.
std::shared_ptr<Transport> connect_mpi(const Rendezvous& rendezvous, int rank, GroupHealth health,
                                       std::chrono::milliseconds timeout);

}  // namespace tutti::comm
