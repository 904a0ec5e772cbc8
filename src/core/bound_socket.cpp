#include "core/bound_socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>
#include <vector>

#include "core/socket.h"

namespace tutti {
namespace {

[[noreturn]] void throw_bind_error(int error = errno) {
  throw std::system_error(error, std::generic_category(), "binding a port");
}

struct ListenAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  bool is_ipv6() const { return storage.ss_family == AF_INET6; }
};

ListenAddress ipv4_address(in_addr_t ip) {
  sockaddr_in storage{};
  storage.sin_family = AF_INET;
  storage.sin_addr.s_addr = htonl(ip);
  ListenAddress address{.length = sizeof(storage)};
  std::memcpy(&address.storage, &storage, sizeof(storage));
  return address;
}

ListenAddress wildcard_address() {
  sockaddr_in6 storage{};
  storage.sin6_family = AF_INET6;
  storage.sin6_addr = in6addr_any;
  ListenAddress address{.length = sizeof(storage)};
  std::memcpy(&address.storage, &storage, sizeof(storage));
  return address;
}

BoundSocket bind_to(ListenAddress address, std::optional<std::uint16_t> port, const PortRange& free) {
  BoundSocket made;
  made.fd = FileDescriptor(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!made.fd.is_open()) throw_bind_error();
  const int on = 1;
  const int off = 0;
  // Accepted connections inherit this option, so closed connections do not block the port. For a free port it is
  // set after bind(), because two sockets could otherwise get the same one.
  const auto allow_address_reuse = [&] { ::setsockopt(made.fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)); };
  if (address.is_ipv6()) ::setsockopt(made.fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (port) {
    allow_address_reuse();
    port_in(address.storage) = htons(*port);
    if (::bind(made.fd.get(), address.get(), address.length) != 0) throw_bind_error();
  } else {
    bind_free_port(made.fd.get(), address.storage, address.length, free);
    allow_address_reuse();
  }
  made.port = static_cast<std::uint16_t>(local_address_of(made.fd.get()).port);
  return made;
}

std::vector<ListenAddress> resolve(const std::string& host, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  std::vector<ListenAddress> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    addresses.push_back({.length = one->ai_addrlen});
    std::memcpy(&addresses.back().storage, one->ai_addr, one->ai_addrlen);
  }
  return addresses;
}

}  // namespace

BoundSocket bind_to_loopback(std::optional<std::uint16_t> port, const PortRange& free) {
  return bind_to(ipv4_address(INADDR_LOOPBACK), port, free);
}

BoundSocket bind_to_host(const std::string& host, std::optional<std::uint16_t> port, const PortRange& free) {
  auto addresses = resolve(host, AI_NUMERICHOST);
  if (addresses.empty()) {
    addresses = resolve(host, 0);
    std::erase_if(addresses, [](const ListenAddress& address) {
      return is_loopback(numeric_host(address.get(), address.length));
    });
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
    return bind_to(wildcard_address(), port, free);
  } catch (const std::system_error& error) {
    if (error.code().value() == EADDRINUSE) throw;
    return bind_to(ipv4_address(INADDR_ANY), port, free);  // the machine has no IPv6
  }
}

void start_listening(const BoundSocket& socket) {
  if (::listen(socket.fd.get(), SOMAXCONN) != 0) throw_bind_error();
}

}  // namespace tutti
