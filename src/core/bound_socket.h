#pragma once
// Taking a port, at no more addresses than those who connect need. All throw std::system_error, with the system's code.
#include <cstdint>
#include <optional>
#include <string>

#include "core/file_descriptor.h"

namespace tutti {

/// A stream socket that has a port. It does not listen yet.
struct BoundSocket {
  FileDescriptor fd;
  std::uint16_t port = 0;
};

/// Out of reach for other machines. A free port where it is unset.
BoundSocket bind_to_loopback(std::optional<std::uint16_t> port);

/// At the one address of this machine that `host` means. At all addresses where it means several, or none that is this
/// machine's own (a service in front of it), or where it is a name that leads back to this machine and others find
/// elsewhere.
BoundSocket bind_to_host(const std::string& host, std::optional<std::uint16_t> port);

/// At all addresses, of IPv6 and IPv4.
BoundSocket bind_everywhere(std::optional<std::uint16_t> port);

/// Two sockets may have one port until one of them listens.
void start_listening(const BoundSocket& socket);

}  // namespace tutti
