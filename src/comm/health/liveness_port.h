#pragma once
// A port at which only this process listens, so that those on other machines can see at once that it has ended: then
// the machine refuses them. Nothing is said there.
#include <optional>
#include <string>

#include "core/socket.h"

namespace tutti::comm {

class LivenessPort {
 public:
  /// None.
  LivenessPort() = default;
  /// Listens at `host`, an address of this machine. Has no address() if that fails.
  explicit LivenessPort(const std::string& host);

  /// The address that peers probe; nullopt if the process does not listen.
  const std::optional<SocketAddress>& address() const { return address_; }
  /// Closes the connections of probes: the system's queue of pending connections is bounded.
  void drain_connections();

 private:
  FileDescriptor listening_;
  std::optional<SocketAddress> address_;
};

enum class Probe {
  connected,  ///< the process is there
  refused,    ///< no process listens there: it has exited, if it was ever connected
  no_reply,   ///< no answer in time: the host may be down or unreachable
};
/// Takes at most 50 ms.
Probe probe(const SocketAddress& address);

}  // namespace tutti::comm
