#include "coordinator/address.h"

#include <thread>

#include "core/launchers.h"
#include "core/socket.h"
#include "tutti/core/error.h"

namespace tutti::coordinator {

std::optional<std::string> local_name(const std::string& host) {
  if (!host.starts_with(local_coordinator_scheme)) return std::nullopt;
  return host.substr(local_coordinator_scheme.size());
}

Address::Address(const std::string& host, std::uint16_t port, Time deadline) : host_(host), port_(port) {
  constexpr auto retry_interval = Milliseconds(20);
  if (local_name(host_)) return;
  for (;;) {
    numeric_hosts_ = resolve_host(host_);
    if (!numeric_hosts_.empty()) return;
    if (current_time() >= deadline) {
      throw TimeoutError("the host of the coordinator, " + host_ + ", has no address", {});
    }
    std::this_thread::sleep_for(retry_interval);  // the machine may just be starting
  }
}

FileDescriptor Address::start_connecting() {
  if (const auto name = local_name(host_)) {
    auto socket = connect_local(*name);
    if (!is_same_user(socket)) throw UsageError("a process of another user listens there");
    return socket;
  }
  const auto& host = numeric_hosts_[attempts_++ % numeric_hosts_.size()];
  return connect_nonblocking({.host = host, .port = port_});
}

void Address::keep() {
  if (numeric_hosts_.size() > 1) numeric_hosts_ = {numeric_hosts_[(attempts_ - 1) % numeric_hosts_.size()]};
}

std::string Address::describe() const {
  return local_name(host_) ? host_ : host_ + " port " + std::to_string(port_);
}

}  // namespace tutti::coordinator
