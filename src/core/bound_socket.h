#pragma once
// Sockets bound to a port, at no more addresses than the clients need. All functions throw std::system_error,
// and UsageError if every port of a range is in use.
#include <cstdint>
#include <optional>
#include <string>

#include "core/file_descriptor.h"
#include "core/port_range.h"

namespace tutti {

/// A stream socket bound to a port. It does not listen yet.
struct BoundSocket {
  FileDescriptor fd;
  std::uint16_t port = 0;
};

// Unset `port`: a free one of `free`.

/// Binds to loopback, which other machines cannot reach.
BoundSocket bind_to_loopback(std::optional<std::uint16_t> port, const PortRange& free = {});

/// Binds to the one address of this machine that `host` resolves to. Binds to all addresses if `host` resolves to
/// several, to none of this machine (a service in front of it), or to loopback by a name that other machines resolve
/// differently.
BoundSocket bind_to_host(const std::string& host, std::optional<std::uint16_t> port, const PortRange& free = {});

/// Binds to all IPv6 and IPv4 addresses.
BoundSocket bind_everywhere(std::optional<std::uint16_t> port, const PortRange& free = {});

/// Lets two sockets share a port until one of them listens.
void start_listening(const BoundSocket& socket);

}  // namespace tutti
