#include "core/socket.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <system_error>

#include "tutti/core/error.h"

namespace tutti {
namespace {

[[noreturn]] void throw_socket_error(const char* what, int error = errno) {
  throw std::system_error(error, std::generic_category(), what);
}

/// Of the interfaces that are wanted: IPv4 before IPv6, and a link-local address last.
std::optional<std::string> find_address(const std::function<bool(const ifaddrs&)>& is_wanted) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) throw_socket_error("listing network interfaces");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(all, &::freeifaddrs);
  std::optional<std::string> global;
  std::optional<std::string> link_local;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || !is_wanted(*one)) continue;
    if (one->ifa_addr->sa_family == AF_INET) return numeric_host(one->ifa_addr);
    if (one->ifa_addr->sa_family != AF_INET6) continue;
    const bool is_local = IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr);
    std::optional<std::string>& found = is_local ? link_local : global;
    if (!found) found = numeric_host(one->ifa_addr);
  }
  return global ? global : link_local;
}

FileDescriptor open_socket(int family) {
  auto socket = FileDescriptor::open_unshared(
      [family] { return ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  if (!socket.is_open()) throw_socket_error("opening a socket");
  return socket;
}

}  // namespace

std::string format_address(const std::string& host, int port) {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::vector<sockaddr_storage> resolve(const std::string& host, int flags, int* failure) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (failure != nullptr) *failure = error;
  if (error != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  std::vector<sockaddr_storage> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    std::memcpy(&addresses.emplace_back(), one->ai_addr, one->ai_addrlen);
  }
  return addresses;
}

sockaddr_storage numeric_address(const SocketAddress& address) {
  auto found = resolve(address.host, AI_NUMERICHOST);
  if (found.empty()) throw_socket_error("reading an address", EINVAL);
  port_in(found.front()) = htons(static_cast<std::uint16_t>(address.port));
  return found.front();
}

std::string numeric_host(const sockaddr* address) {
  std::array<char, NI_MAXHOST> text{};
  const auto length =
      static_cast<socklen_t>(address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
  if (::getnameinfo(address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return text.data();
}

std::vector<std::string> resolve_host(const std::string& host) {
  std::vector<std::string> addresses;
  for (const auto& address : resolve(host, 0)) addresses.push_back(numeric_host(pointer_to(address)));
  return addresses;
}

bool is_loopback(const std::string& host) {
  return host.starts_with("127.") || host == "::1";
}

std::string interface_address(const std::string& interface) {
  if (auto address = find_address([&](const ifaddrs& one) { return interface == one.ifa_name; })) {
    return *std::move(address);
  }
  throw UsageError("GLOO_SOCKET_IFNAME: the network interface " + interface + " has no address.");
}

std::optional<std::string> first_network_address() {
  return find_address(
      [](const ifaddrs& one) { return (one.ifa_flags & IFF_UP) != 0 && (one.ifa_flags & IFF_LOOPBACK) == 0; });
}

ListeningSocket listen_tcp(const std::string& host, const PortRange& ports) {
  const auto address = numeric_address({host, 0});
  ListeningSocket listening{open_socket(address.ss_family), {host, 0}};
  constexpr int backlog = 1024;
  bind_free_port(listening.socket.get(), address, ports);
  if (::listen(listening.socket.get(), backlog) != 0) throw_socket_error("listening");
  listening.address.port = local_address_of(listening.socket.get()).port;
  return listening;
}

namespace {

struct LocalAddress {
  explicit LocalAddress(const std::string& name) {
    address.sun_family = AF_UNIX;
    // A name that begins with a zero byte is not in the file system.
    if (name.size() + 1 > sizeof(address.sun_path)) throw_socket_error("the name of a local socket", ENAMETOOLONG);
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }

  sockaddr_un address{};
  socklen_t length = 0;
};

}  // namespace

FileDescriptor connect_local(const std::string& name) {
  const LocalAddress address(name);
  FileDescriptor socket = open_socket(AF_UNIX);
  if (::connect(socket.get(), address.get(), address.length) != 0) throw_socket_error("connecting");
  return socket;
}

FileDescriptor listen_local(const std::string& name) {
  const LocalAddress address(name);
  FileDescriptor socket = open_socket(AF_UNIX);
  if (::bind(socket.get(), address.get(), address.length) != 0 || ::listen(socket.get(), SOMAXCONN) != 0) {
    throw_socket_error("listening");
  }
  return socket;
}

bool is_same_user(const FileDescriptor& socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == ::geteuid();
}

void set_nonblocking(const FileDescriptor& socket) {
  const int flags = ::fcntl(socket.get(), F_GETFL);
  if (flags < 0 || ::fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK) != 0) throw_socket_error("a socket's mode");
}

bool has_unacknowledged_bytes(const FileDescriptor& socket) {
  constexpr int lost_probes = 3;  // in a row
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (::getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
  return info.tcpi_unacked > 0 || info.tcpi_probes >= lost_probes;
}

std::chrono::milliseconds since_last_acknowledgement(const FileDescriptor& socket) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (::getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return std::chrono::milliseconds(0);
  return std::chrono::milliseconds(info.tcpi_last_ack_recv);
}

FileDescriptor connect_nonblocking(const SocketAddress& address) {
  const auto peer = numeric_address(address);
  FileDescriptor socket = open_socket(peer.ss_family);
  set_tcp_nodelay(socket);
  if (::connect(socket.get(), pointer_to(peer), sizeof(peer)) != 0 && errno != EINPROGRESS) {
    throw_socket_error("connecting");
  }
  return socket;
}

void finish_connect(const FileDescriptor& socket) {
  int error = 0;
  socklen_t length = sizeof(error);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) throw_socket_error("connecting");
  if (error != 0) throw_socket_error("connecting", error);
}

std::optional<FileDescriptor> try_accept(const FileDescriptor& listening) {
  auto socket = FileDescriptor::open_unshared(
      [&listening] { return ::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
  if (!socket.is_open()) return std::nullopt;
  return socket;
}

void set_keepalive(const FileDescriptor& socket, std::chrono::milliseconds timeout) {
  constexpr int probes = 3;
  constexpr std::int64_t longest = 32767;  // that the kernel allows
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout).count() / (1 + probes);
  const int interval = static_cast<int>(std::clamp<std::int64_t>(seconds, 1, longest));
  const auto set = [&](int level, int option, int value) {
    ::setsockopt(socket.get(), level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_KEEPIDLE, interval);
  set(IPPROTO_TCP, TCP_KEEPINTVL, interval);
  set(IPPROTO_TCP, TCP_KEEPCNT, probes);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
}

void set_user_timeout(const FileDescriptor& socket, std::chrono::milliseconds timeout) {
  const auto most = std::chrono::milliseconds(std::numeric_limits<int>::max());
  const auto limit = static_cast<unsigned>(std::min(timeout, most).count());
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, sizeof(limit));
}

void set_tcp_nodelay(const FileDescriptor& socket) {
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

SocketAddress local_address_of(int descriptor) {
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  auto* const address = reinterpret_cast<sockaddr*>(&bound);
  if (::getsockname(descriptor, address, &length) != 0) throw_socket_error("reading an address");
  const auto host = numeric_host(address);
  const bool is_everywhere = host == "0.0.0.0" || host == "::";
  return {.host = is_everywhere ? loopback_host : host, .port = ntohs(port_in(bound))};
}

std::string describe_peer(const FileDescriptor& socket) {
  sockaddr_storage peer{};
  socklen_t length = sizeof(peer);
  auto* const address = reinterpret_cast<sockaddr*>(&peer);
  if (::getpeername(socket.get(), address, &length) != 0) return "a disconnected peer";
  if (peer.ss_family == AF_UNIX) return "a process of this machine";
  return numeric_host(address) + " port " + std::to_string(ntohs(port_in(peer)));
}

}  // namespace tutti
