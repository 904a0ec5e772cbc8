#pragma once
// A handshake over a connection.
#include <chrono>
#include <string>

#include "comm/auth/handshake.h"
#include "core/socket.h"

namespace tutti::comm {

/// Takes the handshake as far as it goes now, without waiting. Throws std::system_error where the connection has ended.
Handshake::Outcome advance_handshake(Handshake& handshake, const FileDescriptor& socket);

/// The result of authenticate().
struct AuthResult {
  enum class Status {
    authenticated,     ///< both know the secret
    refused,           ///< the other side says that this one does not know it
    unauthenticated,   ///< the other side does not know it
    no_auth_required,  ///< a store of c10d that asks for no proof
    no_response,       ///< connected, but the peer sent nothing; the server may not be accepting yet
    unreachable,       ///< no connection, or one that ended
  };
  Status status = Status::unreachable;
  std::string cause{};  ///< of `unreachable`
};

/// Calls `address`, proves the secret for `subject` and hangs up. Takes hardly longer than `timeout`.
AuthResult authenticate(const SocketAddress& address, const JobSecretPtr& secret, const std::string& subject,
                        std::chrono::milliseconds timeout);

/// Whether the server at `address` asks for a proof within `timeout`.
bool requires_authentication(const SocketAddress& address, std::chrono::milliseconds timeout);

}  // namespace tutti::comm
