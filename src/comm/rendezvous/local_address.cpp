#include "comm/rendezvous/local_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <optional>

#include "core/launchers.h"
#include "core/socket.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

// Connecting a datagram socket only chooses the route.
std::optional<std::string> address_on_route(const addrinfo& target) {
  const int descriptor = ::socket(target.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return std::nullopt;
  sockaddr_storage local{};
  socklen_t length = sizeof(local);
  const bool routed = ::connect(descriptor, target.ai_addr, target.ai_addrlen) == 0 &&
                      ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&local), &length) == 0;
  ::close(descriptor);
  if (!routed) return std::nullopt;
  return numeric_host(reinterpret_cast<sockaddr*>(&local), length);
}

}  // namespace

std::string local_address_towards(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int failure = ::getaddrinfo(host.c_str(), "9", &hints, &found);
  if (failure != 0) throw UsageError("MASTER_ADDR '" + host + "' cannot be resolved: " + ::gai_strerror(failure) + ".");
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> targets(found, &::freeaddrinfo);
  for (const addrinfo* target = found; target != nullptr; target = target->ai_next) {
    if (auto address = address_on_route(*target)) return *address;
  }
  throw UsageError("There is no route to MASTER_ADDR '" + host +
                   "'. Set GLOO_SOCKET_IFNAME to the network interface that the ranks share.");
}

std::string network_address(const std::string& host) {
  const auto interface = process_variable("GLOO_SOCKET_IFNAME").value_or("");
  if (!interface.empty()) return interface_address(interface);
  return host.empty() ? "" : local_address_towards(host);
}

}  // namespace tutti::comm
