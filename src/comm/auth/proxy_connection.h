#pragma once
// One connection that is passed on to another, once a secret is proven.
#include <poll.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "comm/auth/handshake.h"
#include "core/socket.h"

namespace tutti::comm {

/// Bytes in flight from one socket to another. It reads at most as many as its buffer holds.
class ByteRelay {
 public:
  /// Moves what can be moved now. Throws std::system_error where a connection broke.
  void move(const FileDescriptor& from, const FileDescriptor& to);
  bool wants_to_read() const { return !ended_ && size_ == 0; }
  bool wants_to_write() const { return sent_ < size_; }
  /// The source has ended and all of it has been moved.
  bool is_finished() const { return ended_ && !wants_to_write(); }

 private:
  std::array<std::byte, 16 * 1024> buffer_{};
  std::size_t size_ = 0;
  std::size_t sent_ = 0;
  bool ended_ = false;
};

/// Used by one thread.
class ProxyConnection {
 public:
  using Time = std::chrono::steady_clock::time_point;
  /// Who proves it.
  enum class Role {
    server,  ///< who has connected, before anything is passed on
    client,  ///< this process, where it passes on to
  };

  /// `client` has connected at `since`; what it says goes to `server_address`.
  ProxyConnection(FileDescriptor client, SocketAddress server_address, Role role, JobSecretPtr secret,
                  std::string subject, Time since);

  /// What to poll for is added to `poll_set`.
  void add_poll_events(std::vector<pollfd>& poll_set) const;
  /// When to call on_ready() even if nothing is found.
  std::optional<Time> next_attempt() const { return next_attempt_; }
  /// Does what can be done now. Returns false when the connection has ended.
  bool on_ready(Time now);

  /// Whether it waits for a proof.
  bool is_pending() const { return !authenticated_; }
  /// Whether a wrong proof was given, or this process's was refused.
  bool has_failed() const { return failed_; }
  Time since() const { return since_; }
  const FileDescriptor& client() const { return client_; }

 private:
  bool authenticate();
  void connect_to_server();
  bool reconnect(Time now);
  bool relay();

  FileDescriptor client_;
  FileDescriptor server_;
  SocketAddress server_address_;
  Role role_;
  JobSecretPtr secret_;
  std::string subject_;
  Time since_;
  std::optional<Handshake> handshake_;
  bool connecting_ = false;
  bool authenticated_ = false;
  bool failed_ = false;
  std::optional<Time> next_attempt_;
  ByteRelay to_server_;  // client to server
  ByteRelay to_client_;  // server to client
};

}  // namespace tutti::comm
