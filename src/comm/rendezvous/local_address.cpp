#include "comm/rendezvous/local_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "core/launchers.h"
#include "core/socket.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

// Of documentation (RFC 5737, RFC 3849): on no machine, so the default route leads to them.
constexpr std::array addresses_elsewhere{"192.0.2.1", "2001:db8::1"};

using Targets = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

/// Null, with the reason in `failure`, where there is none.
Targets resolve(const std::string& host, int flags, int& failure) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  failure = ::getaddrinfo(host.c_str(), "9", &hints, &found);
  return {failure == 0 ? found : nullptr, &::freeaddrinfo};
}

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

// The record of a pod's own name may come later than the pod, and later than those of other pods.
Targets resolve_within(std::chrono::seconds timeout, const std::string& host, int& failure) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    Targets targets = resolve(host, 0, failure);
    const bool may_come = failure == EAI_AGAIN || failure == EAI_NONAME;
    if (targets || !may_come || std::chrono::steady_clock::now() >= deadline) return targets;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

bool is_numeric(const std::string& host) {
  int failure = 0;
  return resolve(host, AI_NUMERICHOST, failure) != nullptr;
}

/// That of the default route, or of the first network interface; nullopt if there is only loopback.
std::optional<std::string> address_for_other_machines() {
  for (const char* elsewhere : addresses_elsewhere) {
    int failure = 0;
    const Targets target = resolve(elsewhere, AI_NUMERICHOST, failure);
    auto address = target ? address_on_route(*target) : std::nullopt;
    if (address && !is_loopback(*address)) return address;
  }
  return first_network_address();
}

std::string local_address_towards(const std::string& host) {
  int failure = 0;
  const Targets targets = resolve_within(std::chrono::seconds(30), host, failure);
  if (!targets) throw UsageError("MASTER_ADDR '" + host + "' cannot be resolved: " + ::gai_strerror(failure) + ".");
  for (const addrinfo* target = targets.get(); target != nullptr; target = target->ai_next) {
    const auto address = address_on_route(*target);
    if (!address) continue;
    // A machine's own name is often a loopback address there (127.0.1.1 on Debian), and another one elsewhere.
    const bool is_own_name = is_loopback(*address) && !is_numeric(host);
    return is_own_name ? address_for_other_machines().value_or(*address) : *address;
  }
  throw UsageError("There is no route to MASTER_ADDR '" + host +
                   "'. Set GLOO_SOCKET_IFNAME to the network interface that the ranks share.");
}

}  // namespace

bool is_another_machine(const std::string& host) {
  int failure = 0;
  const Targets targets = resolve(host, 0, failure);
  for (const addrinfo* target = targets.get(); target != nullptr; target = target->ai_next) {
    const auto own = address_on_route(*target);
    if (own && (is_loopback(*own) || *own == numeric_host(target->ai_addr, target->ai_addrlen))) return false;
  }
  return targets != nullptr;
}

std::string network_address(const std::string& host) {
  const auto interface = process_variable("GLOO_SOCKET_IFNAME").value_or("");
  if (!interface.empty()) return interface_address(interface);
  return host.empty() ? "" : local_address_towards(host);
}

}  // namespace tutti::comm
