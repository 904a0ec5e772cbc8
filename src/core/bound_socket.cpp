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

namespace tutti {
namespace {

[[noreturn]] void throw_bind_error(int error = errno) {
  throw std::system_error(error, std::generic_category(), "taking a port");
}

struct PlaceToBind {
  sockaddr_storage where{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&where); }
  bool is_ipv6() const { return where.ss_family == AF_INET6; }
  bool is_loopback() const {
    if (is_ipv6()) return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(where).sin6_addr);
    constexpr int first_byte = 24;
    return ntohl(reinterpret_cast<const sockaddr_in&>(where).sin_addr.s_addr) >> first_byte == IN_LOOPBACKNET;
  }
  void set_port(std::uint16_t port) {
    (is_ipv6() ? reinterpret_cast<sockaddr_in6&>(where).sin6_port : reinterpret_cast<sockaddr_in&>(where).sin_port) =
        htons(port);
  }
};

PlaceToBind ipv4_place(in_addr_t address) {
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(address);
  PlaceToBind place{.length = sizeof(where)};
  std::memcpy(&place.where, &where, sizeof(where));
  return place;
}

PlaceToBind every_place() {
  sockaddr_in6 where{};
  where.sin6_family = AF_INET6;
  where.sin6_addr = in6addr_any;
  PlaceToBind place{.length = sizeof(where)};
  std::memcpy(&place.where, &where, sizeof(where));
  return place;
}

std::uint16_t port_of_socket(int fd) {
  sockaddr_storage where{};
  socklen_t length = sizeof(where);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&where), &length) != 0) throw_bind_error();
  return ntohs(where.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(where).sin6_port
                                           : reinterpret_cast<const sockaddr_in&>(where).sin_port);
}

BoundSocket bind_to(PlaceToBind place, std::optional<std::uint16_t> port) {
  BoundSocket made;
  made.fd = FileDescriptor(::socket(place.where.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!made.fd.is_open()) throw_bind_error();
  const int on = 1;
  const int off = 0;
  // Connections inherit this: ended ones do not keep the port from the next who wants it. With a free port only after
  // bind(), or two sockets might be given the same.
  const auto let_port_be_taken_again = [&] { ::setsockopt(made.fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)); };
  if (place.is_ipv6()) ::setsockopt(made.fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (port) let_port_be_taken_again();
  place.set_port(port.value_or(0));
  if (::bind(made.fd.get(), place.get(), place.length) != 0) throw_bind_error();
  if (!port) let_port_be_taken_again();
  made.port = port_of_socket(made.fd.get());
  return made;
}

std::vector<PlaceToBind> places_of(const std::string& host, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  std::vector<PlaceToBind> places;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    places.push_back({.length = one->ai_addrlen});
    std::memcpy(&places.back().where, one->ai_addr, one->ai_addrlen);
  }
  return places;
}

}  // namespace

BoundSocket bind_to_loopback(std::optional<std::uint16_t> port) {
  return bind_to(ipv4_place(INADDR_LOOPBACK), port);
}

BoundSocket bind_to_host(const std::string& host, std::optional<std::uint16_t> port) {
  auto places = places_of(host, AI_NUMERICHOST);
  if (places.empty()) {
    places = places_of(host, 0);
    std::erase_if(places, [](const PlaceToBind& place) { return place.is_loopback(); });
  }
  if (places.size() != 1) return bind_everywhere(port);
  try {
    return bind_to(places.front(), port);
  } catch (const std::system_error& error) {
    if (error.code().value() != EADDRNOTAVAIL) throw;
    return bind_everywhere(port);
  }
}

BoundSocket bind_everywhere(std::optional<std::uint16_t> port) {
  try {
    return bind_to(every_place(), port);
  } catch (const std::system_error&) {
    return bind_to(ipv4_place(INADDR_ANY), port);  // a machine without IPv6
  }
}

void begin_to_listen(const BoundSocket& socket) {
  if (::listen(socket.fd.get(), SOMAXCONN) != 0) throw_bind_error();
}

}  // namespace tutti
