#pragma once
// The two ports of a job. The launcher listens on the port of tutti's store, and rank 0 inherits the socket, so no
// other process can take the port. The other port, MASTER_PORT, is for programs that listen there, as torch.distributed
// does.
#include <cstdint>
#include <optional>
#include <string>

#include "core/bound_socket.h"

namespace tutti {

using MasterSocket = BoundSocket;

/// Listens on `port`; unset: a free one. `address` is the address that the ranks connect to. If it belongs to this
/// machine, the socket listens on it alone: other machines cannot reach 127.0.0.1. Throws UsageError if the port is in
/// use.
MasterSocket listen_for_ranks(const std::string& address, std::optional<std::uint16_t> port);

/// Keeps `port`, or a free one where it is unset, for a program that is going to listen there, on whatever address:
/// while the socket is open the kernel gives that port to no process that asks for any port. Throws UsageError when
/// another process listens there.
MasterSocket reserve_port(std::optional<std::uint16_t> port);

}  // namespace tutti
