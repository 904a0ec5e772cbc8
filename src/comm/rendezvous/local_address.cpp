#include "comm/rendezvous/local_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "core/launchers.h"
#include "core/socket.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

// Of documentation (RFC 5737, RFC 3849): on no machine, so the default route leads to them.
constexpr std::array addresses_elsewhere{"192.0.2.1", "2001:db8::1"};

// Connecting a datagram socket only chooses the route.
std::optional<std::string> address_on_route(sockaddr_storage target) {
  const int descriptor = ::socket(target.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return std::nullopt;
  constexpr std::uint16_t discard_port = 9;
  port_in(target) = htons(discard_port);
  sockaddr_storage local{};
  socklen_t length = sizeof(local);
  const bool routed = ::connect(descriptor, pointer_to(target), sizeof(target)) == 0 &&
                      ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&local), &length) == 0;
  ::close(descriptor);
  if (!routed) return std::nullopt;
  return numeric_host(pointer_to(local));
}

// The record of a pod's own name may come later than the pod, and later than those of other pods.
std::vector<sockaddr_storage> resolve_within(std::chrono::seconds timeout, const std::string& host, int& failure) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    auto targets = resolve(host, 0, &failure);
    const bool may_come = failure == EAI_AGAIN || failure == EAI_NONAME;
    if (!may_come || std::chrono::steady_clock::now() >= deadline) return targets;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

/// That of the default route, or of the first network interface; nullopt if there is only loopback.
std::optional<std::string> address_for_other_machines() {
  for (const char* elsewhere : addresses_elsewhere) {
    auto address = address_on_route(numeric_address({elsewhere, 0}));
    if (address && !is_loopback(*address)) return address;
  }
  return first_network_address();
}

std::string local_address_towards(const std::string& host) {
  int failure = 0;
  const auto targets = resolve_within(std::chrono::seconds(30), host, failure);
  if (targets.empty())
    throw UsageError("MASTER_ADDR '" + host + "' cannot be resolved: " + ::gai_strerror(failure) + ".");
  for (const auto& target : targets) {
    const auto address = address_on_route(target);
    if (!address) continue;
    // A machine's own name is often a loopback address there (127.0.1.1 on Debian), and another one elsewhere.
    const bool is_own_name = is_loopback(*address) && resolve(host, AI_NUMERICHOST).empty();
    return is_own_name ? address_for_other_machines().value_or(*address) : *address;
  }
  throw UsageError("There is no route to MASTER_ADDR '" + host +
                   "'. Set GLOO_SOCKET_IFNAME to the network interface that the ranks share.");
}

}  // namespace

bool is_another_machine(const std::string& host) {
  const auto targets = resolve(host, 0);
  for (const auto& target : targets) {
    const auto own = address_on_route(target);
    if (own && (is_loopback(*own) || *own == numeric_host(pointer_to(target)))) return false;
  }
  return !targets.empty();
}

std::string network_address(const std::string& host) {
  const auto interface = process_variable("GLOO_SOCKET_IFNAME").value_or("");
  if (!interface.empty()) return interface_address(interface);
  return host.empty() ? "" : local_address_towards(host);
}

}  // namespace tutti::comm
