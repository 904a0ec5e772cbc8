#pragma once
// The connection on which this rank sends messages to one other rank.
#include <poll.h>

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/auth/handshake.h"
#include "comm/os/process.h"
#include "comm/p2p/request.h"
#include "core/socket.h"

namespace tutti::comm {

/// The address at which a rank receives messages, as published at the store.
struct EndpointAddress {
  SocketAddress socket;
  Nonce nonce{};  ///< a client that does not send it is rejected

  std::string to_text() const;
  static EndpointAddress from_text(const std::string& text);
};

/// What members prove the job's secret for where there is one, before anything else is said.
inline constexpr const char* p2p_auth_subject = "p2p";

/// The first bytes of a connection of members.
struct Hello {
  Nonce nonce{};
  std::int64_t rank = 0;  ///< in the job
};

/// Used by one thread at a time.
class OutboundConnection {
 public:
  /// `secret` is null where none is to be proven.
  OutboundConnection(int own_rank, JobSecretPtr secret) : own_rank_(own_rank), secret_(std::move(secret)) {}

  void add(const MessageHeader& header, RequestPtr request);
  /// Whether the connection is established and authenticated.
  bool is_connected() const { return socket_.is_open() && !connecting_ && !handshake_; }
  /// No request is left.
  bool is_idle() const;
  /// A close frame waits to be sent to a connected rank.
  bool has_pending_close() const { return is_connected() && !queue_.empty(); }
  bool needs_address() const { return !is_idle() && !socket_.is_open() && !disconnected_; }
  /// Fails the requests of the group that have not started to send, with `failure`.
  void cancel_group(std::uint64_t group, const std::exception_ptr& failure, Completions& completions);
  /// The peer has disconnected.
  void on_disconnect(Completions& completions);
  /// This rank ends without sending what is left.
  void discard(Completions& completions);
  void connect(const EndpointAddress& address, Completions& completions);

  /// What to poll for; nullopt without a connection.
  std::optional<pollfd> poll_events() const;
  /// After poll() has found something: writes what can be written.
  void on_ready(short revents, Completions& completions);
  /// Fails requests whose deadline has passed, or whose peer has exited and has no connection.
  void expire(Deadline now, bool check_exited, Completions& completions);
  std::optional<Deadline> next_deadline() const;

 private:
  struct OutboundMessage {
    MessageHeader header;
    RequestPtr request;  // null for a close frame
    std::size_t sent = 0;
  };
  /// Returns whether the other side has proven what it has to.
  bool authenticate(Completions& completions);
  void write(Completions& completions);
  using MakeError = std::exception_ptr (*)(const Request&);
  void fail_all(Completions& completions, MakeError make_error);

  int own_rank_;
  JobSecretPtr secret_;
  FileDescriptor socket_;
  std::optional<Handshake> handshake_;  // until it is over
  bool connecting_ = false;
  bool disconnected_ = false;
  Hello hello_;
  std::size_t hello_sent_ = 0;
  std::deque<OutboundMessage> queue_;
};

}  // namespace tutti::comm
