#pragma once
// Two ports of a job. At one of them the launcher listens, and rank 0 inherits the socket: there tutti's ranks meet,
// and no other process can take the port in between. The other, MASTER_PORT, is for programs that listen there
// themselves, as torch.distributed does.
#include <cstdint>
#include <optional>
#include <string>

#include "core/bound_socket.h"

namespace tutti {

using MasterSocket = BoundSocket;

/// Listens on `port`, or on a free one where it is unset. `address` is what the ranks connect to, and where it is this
/// machine's no other one is listened at: for 127.0.0.1 other machines do not reach the socket. Throws UsageError when
/// the port is in use.
MasterSocket listen_for_ranks(const std::string& address, std::optional<std::uint16_t> port);

/// Keeps `port`, or a free one where it is unset, for a program that is going to listen there, on whatever address:
/// while the socket is open the kernel gives that port to nobody who asks for any. Throws UsageError when somebody
/// listens there.
MasterSocket reserve_port(std::optional<std::uint16_t> port);

}  // namespace tutti
