#pragma once
// Where a coordinator listens: a TCP address, or "local:NAME".
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "core/file_descriptor.h"

namespace tutti::coordinator {

/// The name of an abstract Unix socket; nullopt for a TCP host.
inline std::optional<std::string> local_name(const std::string& host) {
  constexpr std::string_view prefix = "local:";
  if (!host.starts_with(prefix)) return std::nullopt;
  return host.substr(prefix.size());
}

inline sockaddr_storage bound_address(const FileDescriptor& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw std::system_error(errno, std::generic_category(), "reading the address of a socket");
  }
  return address;
}

inline int address_family(const FileDescriptor& socket) {
  return bound_address(socket).ss_family;
}

/// Zero for a Unix socket.
inline std::uint16_t port_of(const FileDescriptor& socket) {
  const auto address = bound_address(socket);
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return address.ss_family == AF_INET ? ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port)
                                      : std::uint16_t{0};
}

}  // namespace tutti::coordinator
