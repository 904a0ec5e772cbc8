#include "comm/p2p/inbound_connection.h"

#include <limits>
#include <system_error>
#include <utility>

#include "comm/auth/auth_client.h"

namespace tutti::comm {

InboundConnection::InboundConnection(FileDescriptor socket, const Nonce& nonce, const JobSecretPtr& secret,
                                     Deadline since)
    : socket_(std::move(socket)), nonce_(nonce), since_(since) {
  if (secret) handshake_.emplace(Handshake::Side::server, secret, p2p_auth_subject);
}

std::optional<bool> InboundConnection::fill(std::span<std::byte> to, std::size_t& read) {
  while (read < to.size()) {
    const auto count = try_read(socket_, to.subspan(read));
    if (!count) return std::nullopt;
    if (*count == 0) return false;
    read += *count;
  }
  return true;
}

InboundConnection::State InboundConnection::read() {
  try {
    if (handshake_) {
      const auto outcome = advance_handshake(*handshake_, socket_);
      if (outcome == Handshake::Outcome::pending) return State::would_block;
      handshake_.reset();
      if (outcome != Handshake::Outcome::authenticated) return State::closed;
    }
    if (hello_read_ < sizeof(Hello)) {
      const auto full = fill(std::as_writable_bytes(std::span(&hello_, 1)), hello_read_);
      if (!full) return State::closed;
      if (!*full) return State::would_block;
      if (hello_.nonce != nonce_ || hello_.rank < 0 || hello_.rank > std::numeric_limits<int>::max()) {
        hello_read_ = 0;  // not a rank of this job
        return State::closed;
      }
    }
    if (body_) {
      do {
        const auto full = fill(body_->to, body_->read);
        if (!full) return State::closed;
        if (!*full) return State::would_block;
      } while (body_->next_chunk());
      return State::message;
    }
    const auto full = fill(std::as_writable_bytes(std::span(&header_, 1)), header_read_);
    if (!full) return State::closed;
    if (!*full) return State::would_block;
    header_read_ = 0;
    return State::header;
  } catch (const std::system_error&) {
    return State::closed;
  }
}

}  // namespace tutti::comm
