#pragma once
// The two ports of a job. The launcher listens on the port of the coordinator, which it runs. The other port,
// MASTER_PORT, is for programs that listen there, as torch.distributed does.
#include <cstdint>
#include <optional>
#include <string>

#include "core/bound_socket.h"

namespace tutti {

/// Listens on `port`; unset: a free one (of TUTTI_PORT_RANGE). `address` is the address that the ranks connect to. If
/// it belongs to this machine, the socket listens on it alone: other machines cannot reach 127.0.0.1. Throws UsageError
/// if the port is in use.
BoundSocket listen_for_ranks(const std::string& address, std::optional<std::uint16_t> port);

/// Reserves `port` (unset: a free one) for a program that will listen on it, on any address. While the socket is open,
/// the kernel does not assign the port to other processes. Throws UsageError if another process listens on it.
BoundSocket reserve_port(std::optional<std::uint16_t> port);

}  // namespace tutti
