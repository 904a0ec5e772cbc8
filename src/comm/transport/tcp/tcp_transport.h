#pragma once
// The TCP transport: the messages of collectives over the connections that all groups of a job share.
#include <memory>

#include "comm/health/heartbeat_monitor.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/transport/tcp/endpoint.h"
#include "comm/transport/transport.h"

namespace tutti::comm {

/// A transport among the ranks of `health`, all of the job's, which met at `rendezvous`. Ranks connect with their first
/// message.
std::shared_ptr<Transport> make_tcp_transport(const Rendezvous& rendezvous, std::shared_ptr<Endpoint> endpoint,
                                              int rank, GroupHealth health);

}  // namespace tutti::comm
