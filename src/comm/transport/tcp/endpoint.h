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

/// The socket at which other ranks connect to this one. A rank without one is in the job as long as it exchanges no
/// messages.
struct MessageSocket {
  ListeningSocket listening{};
  Nonce nonce{};
  std::string problem{};  ///< why there is no socket; empty if there is one

  /// Listens at `host`, a numeric address, or at the address of the network interface `interface` unless that is empty.
  /// Throws std::system_error only if the system provides no random numbers.
  static MessageSocket listen(const std::string& host, const std::string& interface = "");
  /// The address or the problem, for the other ranks.
  std::string to_text() const;
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
  /// `addresses` are MessageSocket::to_text() of all ranks of the job. Throws PeerError if one is neither an address
  /// nor a problem, and std::system_error if there are no descriptors.
  Endpoint(MessageSocket socket, const std::vector<std::string>& addresses, EndpointOptions options);
  ~Endpoint() {
    if (loop_) loop_->close();
  }
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  bool encrypts() const { return options_.encrypts; }
  /// Why `rank` cannot exchange messages; empty if it can.
  const std::string& problem_of(int rank) const { return problems_.at(static_cast<std::size_t>(rank)); }
  /// Throws PeerError if this rank has no socket.
  EventLoop& loop();
  /// See EventLoop::close_channel.
  void close_channel(const ClosedChannel& closed, bool cancel_sends) noexcept;

 private:
  const EndpointOptions options_;
  std::vector<std::string> problems_;  // by rank
  std::shared_ptr<EventLoop> loop_;    // null if this rank has no socket
};

}  // namespace tutti::comm
