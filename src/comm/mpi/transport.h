#pragma once
// Messages over MPI. The ranks meet, and leave word of failures, in the job's store as they do with Gloo.
#include <chrono>
#include <memory>

#include "comm/meeting/pulse.h"
#include "comm/meeting/rendezvous.h"
#include "comm/messages/transport.h"

namespace tutti::comm {

/// Connects the ranks of `pulse`, which met at `rendezvous`. Throws UsageError, on all ranks, where one of them has no
/// MPI, was not started by an MPI launcher, or has another rank in MPI than in the job.
std::shared_ptr<Transport> connect_mpi(const Rendezvous& rendezvous, int rank, GroupPulse pulse,
                                       std::chrono::milliseconds timeout);

}  // namespace tutti::comm
