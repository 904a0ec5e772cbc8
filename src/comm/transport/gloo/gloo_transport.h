#pragma once
// The Gloo transport: messages of groups of a job's ranks over shared connections.
#include <chrono>
#include <memory>

#include "comm/health/heartbeat_monitor.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/transport/gloo/gloo_connections.h"
#include "comm/transport/transport.h"

namespace tutti::comm {

/// A transport among the ranks of `health`, all of the job's, which met at `rendezvous`. `bind_address` is where this
/// one listens from its first message on. A group's ranks get ready for messages with the first one, which every rank
/// must send or receive, or when Transport::connect() is called; then each connects to those that it talks to in every
/// round, and to others when it first talks to them.
std::shared_ptr<Transport> make_gloo_transport(const Rendezvous& rendezvous, const BindAddress& bind_address, int rank,
                                               GroupHealth health, std::chrono::milliseconds timeout);

}  // namespace tutti::comm
