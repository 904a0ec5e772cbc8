#pragma once
// A TCP proxy that authenticates clients before it forwards their bytes to a server without authentication, such as
// c10d's TCPStore. Each rank runs a client proxy, which proves the job's secret to the server proxy for its own
// process.
//
// A separate thread forwards the bytes.
#include <cstdint>
#include <memory>

#include "comm/auth/proxy_connection.h"

namespace tutti::comm {

/// The destructor closes all forwarded connections.
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
