#pragma once
// A door before something that knows no password. At a gate strangers knock: who proves the job's secret is let
// through. A porter stands at the other end: what a rank's own process says to it, it says to a gate, after the proof.
//
// A thread of its own passes the bytes on.
#include <cstdint>
#include <memory>

#include "comm/auth/proxy_connection.h"

namespace tutti::comm {

/// Closes all that it has let through when it is gone.
class AuthProxy {
 public:
  struct Options {
    FileDescriptor listening;  ///< does not block
    SocketAddress server_address;
    ProxyConnection::Role role = ProxyConnection::Role::server;
    JobSecretPtr secret;
    std::string subject;  ///< of the proof
  };
  /// Throws std::system_error.
  explicit AuthProxy(Options options);
  ~AuthProxy();
  AuthProxy(const AuthProxy&) = delete;
  AuthProxy& operator=(const AuthProxy&) = delete;

  /// Where it passes on to.
  const SocketAddress& server_address() const;

 private:
  class EventLoop;
  std::unique_ptr<EventLoop> loop_;
};

}  // namespace tutti::comm
