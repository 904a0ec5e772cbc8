#include "core/bound_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <system_error>

#include "core/socket.h"

namespace tutti {
namespace {

[[noreturn]] void throw_bind_error(int error = errno) {
  throw std::system_error(error, std::generic_category(), "binding a port");
}

BoundSocket bind_to(sockaddr_storage address, std::optional<std::uint16_t> port, const PortRange& free) {
  BoundSocket made;
  made.fd = FileDescriptor(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!made.fd.is_open()) throw_bind_error();
  const int on = 1;
  const int off = 0;
  // Accepted connections inherit this option, so closed connections do not block the port. For a free port it is
  // set after bind(), because two sockets could otherwise get the same one.
  const auto allow_address_reuse = [&] { ::setsockopt(made.fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)); };
  if (address.ss_family == AF_INET6) ::setsockopt(made.fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (port) {
    allow_address_reuse();
    port_in(address) = htons(*port);
    if (::bind(made.fd.get(), pointer_to(address), sizeof(address)) != 0) throw_bind_error();
  } else {
    bind_free_port(made.fd.get(), address, free);
    allow_address_reuse();
  }
  made.port = static_cast<std::uint16_t>(local_address_of(made.fd.get()).port);
  return made;
}

}  // namespace

BoundSocket bind_to_loopback(std::optional<std::uint16_t> port, const PortRange& free) {
  return bind_to(numeric_address({loopback_host, 0}), port, free);
}

BoundSocket bind_to_host(const std::string& host, std::optional<std::uint16_t> port, const PortRange& free) {
  auto addresses = resolve(host, AI_NUMERICHOST);
  if (addresses.empty()) {
    addresses = resolve(host, 0);
    std::erase_if(addresses, [](const auto& address) { return is_loopback(numeric_host(pointer_to(address))); });
  }
  if (addresses.size() != 1) return bind_everywhere(port, free);
  try {
    return bind_to(addresses.front(), port, free);
  } catch (const std::system_error& error) {
    if (error.code().value() != EADDRNOTAVAIL) throw;
    return bind_everywhere(port, free);
  }
}

BoundSocket bind_everywhere(std::optional<std::uint16_t> port, const PortRange& free) {
  try {
    return bind_to(numeric_address({"::", 0}), port, free);
  } catch (const std::system_error& error) {
    if (error.code().value() == EADDRINUSE) throw;
    return bind_to(numeric_address({"0.0.0.0", 0}), port, free);  // the machine has no IPv6
  }
}

void start_listening(const BoundSocket& socket) {
  if (::listen(socket.fd.get(), SOMAXCONN) != 0) throw_bind_error();
}

}  // namespace tutti
