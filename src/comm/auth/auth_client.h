#pragma once
// A handshake over a connection.
#include "comm/auth/handshake.h"
#include "core/socket.h"

namespace tutti::comm {

/// Takes the handshake as far as it goes now, without waiting. Throws std::system_error where the connection has ended.
Handshake::Outcome advance_handshake(Handshake& handshake, const FileDescriptor& socket);

}  // namespace tutti::comm
