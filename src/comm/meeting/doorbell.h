#pragma once
// A port at which only this process listens, so that those on other machines can see at once that it has ended: then
// the machine refuses them. Nothing is said there.
#include <optional>
#include <string>

#include "comm/members/sockets.h"

namespace tutti::comm {

class Doorbell {
 public:
  /// None.
  Doorbell() = default;
  /// At `host`, an address of this machine. Without a bell where that cannot be.
  explicit Doorbell(const std::string& host);

  /// Where others ring; nullopt where there is no bell.
  const std::optional<SocketAddress>& address() const { return address_; }
  /// Lets go of those who rang: the system keeps only so many waiting.
  void answer();

 private:
  FileDescriptor listening_;
  std::optional<SocketAddress> address_;
};

enum class Ring {
  heard,    ///< the process is there
  refused,  ///< nobody listens there: the process has ended, where it has ever heard a ring
  nothing,  ///< no answer in time: the machine or the way to it may be gone
};
/// Takes a moment at most.
Ring ring(const SocketAddress& address);

}  // namespace tutti::comm
