#pragma once
// A port at which only this process listens, so that those on other machines can see at once that it has ended: then
// the machine refuses them. Nothing is said there.
#include <optional>
#include <string>

#include "comm/os/socket.h"

namespace tutti::comm {

class LivenessPort {
 public:
  /// None.
  LivenessPort() = default;
  /// At `host`, an address of this machine. Without a bell where that cannot be.
  explicit LivenessPort(const std::string& host);

  /// Where others ring; nullopt where there is no bell.
  const std::optional<SocketAddress>& address() const { return address_; }
  /// Lets go of those who rang: the system keeps only so many waiting.
  void drain_connections();

 private:
  FileDescriptor listening_;
  std::optional<SocketAddress> address_;
};

enum class Probe {
  connected,  ///< the process is there
  refused,    ///< nobody listens there: the process has ended, where it has ever heard a ring
  no_reply,   ///< no answer in time: the machine or the way to it may be gone
};
/// Takes a moment at most.
Probe probe(const SocketAddress& address);

}  // namespace tutti::comm
