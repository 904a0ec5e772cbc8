#include "launch/master_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <system_error>

#include "tutti/core/error.h"

namespace tutti {
namespace {

[[noreturn]] void throw_for(int error, std::optional<std::uint16_t> port) {
  const std::string name = port ? "port " + std::to_string(*port) : "a free port";
  if (error == EADDRINUSE && port) throw UsageError(name + " is in use: choose another --master-port");
  if (error == EACCES) throw UsageError(name + " may not be used by this user: choose a --master-port above 1023");
  throw std::system_error(error, std::generic_category(), "cannot listen on " + name);
}

FileDescriptor bind_to(int family, const sockaddr* address, socklen_t length, std::optional<std::uint16_t> port) {
  FileDescriptor fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.is_open()) throw_for(errno, port);
  const int on = 1;
  const int off = 0;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (family == AF_INET6) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (::bind(fd.get(), address, length) != 0) throw_for(errno, port);
  return fd;
}

FileDescriptor bind_ipv4(in_addr_t address, std::optional<std::uint16_t> port) {
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(address);
  where.sin_port = htons(port.value_or(0));
  return bind_to(AF_INET, reinterpret_cast<const sockaddr*>(&where), sizeof(where), port);
}

/// All interfaces, IPv6 and IPv4.
FileDescriptor bind_everywhere(std::optional<std::uint16_t> port) {
  sockaddr_in6 where{};
  where.sin6_family = AF_INET6;
  where.sin6_addr = in6addr_any;
  where.sin6_port = htons(port.value_or(0));
  try {
    return bind_to(AF_INET6, reinterpret_cast<const sockaddr*>(&where), sizeof(where), port);
  } catch (const std::system_error&) {
    return bind_ipv4(INADDR_ANY, port);  // a machine without IPv6
  }
}

/// Two sockets with SO_REUSEADDR may both bind: only this tells them apart.
void listen_on(const FileDescriptor& fd, std::optional<std::uint16_t> port) {
  if (::listen(fd.get(), SOMAXCONN) != 0) throw_for(errno, port);
}

std::uint16_t port_of(int fd) {
  sockaddr_storage where{};
  socklen_t length = sizeof(where);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&where), &length) != 0) {
    throw std::system_error(errno, std::generic_category(), "getsockname");
  }
  return ntohs(where.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&where)->sin6_port
                                           : reinterpret_cast<const sockaddr_in*>(&where)->sin_port);
}

}  // namespace

MasterSocket listen_for_ranks(const std::string& address, std::optional<std::uint16_t> port) {
  MasterSocket master;
  master.fd = address == "127.0.0.1" ? bind_ipv4(INADDR_LOOPBACK, port) : bind_everywhere(port);
  listen_on(master.fd, port);
  master.port = port_of(master.fd.get());
  return master;
}

MasterSocket reserve_port(std::optional<std::uint16_t> port) {
  if (port) listen_on(bind_everywhere(port), port);
  MasterSocket reserved;
  reserved.fd = bind_everywhere(port);
  reserved.port = port_of(reserved.fd.get());
  return reserved;
}

}  // namespace tutti
