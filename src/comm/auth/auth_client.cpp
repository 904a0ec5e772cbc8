#include "comm/auth/auth_client.h"

#include <cerrno>
#include <system_error>

namespace tutti::comm {

Handshake::Outcome advance_handshake(Handshake& handshake, const FileDescriptor& socket) {
  while (handshake.outcome() == Handshake::Outcome::pending) {
    if (const auto out = handshake.to_send(); !out.empty()) {
      const auto count = try_write(socket, out);
      if (count == 0) break;
      handshake.sent(count);
      continue;
    }
    const auto count = try_read(socket, handshake.to_receive());
    if (!count) throw std::system_error(ECONNRESET, std::generic_category(), "proving the job's secret");
    if (*count == 0) break;
    handshake.received(*count);
  }
  return handshake.outcome();
}

}  // namespace tutti::comm
