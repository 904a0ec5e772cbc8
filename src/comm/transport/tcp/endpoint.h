#pragma once
// Where a rank exchanges messages with other ranks: a socket that listens from the rendezvous on, and an event loop.
// The loop accepts connections from the start, so that a send needs no call of the other rank.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/transport/tcp/connection.h"
#include "comm/transport/tcp/event_loop.h"
#include "core/job_secret.h"
#include "core/socket.h"

namespace tutti::comm {

/// The socket at which other ranks connect to this one.
struct MessageSocket {
  ListeningSocket listening{};
  Nonce nonce{};

  /// Listens at the numeric address `host`. Throws std::system_error and UsageError.
  static MessageSocket listen(const std::string& host);
  /// The address, for the other ranks.
  std::string to_text() const { return EndpointAddress{listening.address, nonce}.to_text(); }
};

struct EndpointOptions {
  int rank = 0;           ///< in the job
  JobSecretPtr secret{};  ///< what ranks prove to each other; may be null unless `encrypts`
  bool encrypts = false;
  /// A connection ends when the peer's machine acknowledges nothing for this time; 0: for that of the system.
  std::chrono::milliseconds acknowledgement_timeout{0};
};

/// Thread safe.
class Endpoint {
 public:
  /// `addresses` are MessageSocket::to_text() of all ranks of the job. Throws PeerError if one is no address, and
  /// std::system_error if there are no descriptors.
  Endpoint(MessageSocket socket, const std::vector<std::string>& addresses, EndpointOptions options);
  ~Endpoint() { loop_->close(); }
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  bool encrypts() const { return options_.encrypts; }
  EventLoop& loop() { return *loop_; }
  /// See EventLoop::close_channel.
  void close_channel(const ClosedChannel& closed, bool cancel_sends) noexcept;

 private:
  const EndpointOptions options_;
  std::shared_ptr<EventLoop> loop_;
};

}  // namespace tutti::comm
