#pragma once
// A handshake over a connection.
#include <chrono>
#include <string>

#include "comm/members/handshake.h"
#include "comm/members/sockets.h"

namespace tutti::comm {

/// Takes the handshake as far as it goes now, without waiting. Throws std::system_error where the connection has ended.
Handshake::Outcome go_on(Handshake& handshake, const FileDescriptor& socket);

/// What came of calling somebody.
struct Knocked {
  enum class Answer {
    proven,      ///< both know the secret
    refused,     ///< the other side says that this one does not know it
    unproven,    ///< the other side does not know it
    open_store,  ///< a store of c10d that asks for no proof
    silent,      ///< a connection, and not a word: nobody may have come to the door yet
    nobody,      ///< no connection, or one that ended
  };
  Answer answer = Answer::nobody;
  std::string cause{};  ///< of `nobody`
};

/// Calls `address`, proves the secret for `subject` and hangs up. Takes hardly longer than `patience`.
Knocked knock(const SocketAddress& address, const JobSecretPtr& secret, const std::string& subject,
              std::chrono::milliseconds patience);

/// Whether whoever listens at `address` greets as one who asks for a proof, within `patience`.
bool asks_for_proof(const SocketAddress& address, std::chrono::milliseconds patience);

}  // namespace tutti::comm
