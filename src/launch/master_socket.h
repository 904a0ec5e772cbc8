#pragma once
// The listening socket for the store of rank 0. The launcher binds it and rank 0 inherits it, so no other process can
// take the port in between.
#include <cstdint>
#include <optional>
#include <string>

#include "core/file_descriptor.h"

namespace tutti {

struct MasterSocket {
  FileDescriptor fd;
  std::uint16_t port = 0;
};

/// Listens on `port`, or on a free one where it is unset. `address` is what the ranks connect to: for 127.0.0.1 the
/// socket is not reachable from other machines. Throws UsageError when the port is in use.
MasterSocket listen_for_ranks(const std::string& address, std::optional<std::uint16_t> port);

}  // namespace tutti
