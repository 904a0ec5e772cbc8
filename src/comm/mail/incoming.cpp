#include "comm/mail/incoming.h"

#include <limits>
#include <system_error>
#include <utility>

#include "comm/members/knock.h"

namespace tutti::comm {

Incoming::Incoming(FileDescriptor socket, const Nonce& nonce, const JobSecretPtr& secret, Deadline since)
    : socket_(std::move(socket)), nonce_(nonce), since_(since) {
  if (secret) handshake_.emplace(Handshake::Side::is_called, secret, mail_subject);
}

std::optional<bool> Incoming::fill(std::span<std::byte> to, std::size_t& read) {
  while (read < to.size()) {
    const auto count = read_some(socket_, to.subspan(read));
    if (!count) return std::nullopt;
    if (*count == 0) return false;
    read += *count;
  }
  return true;
}

Incoming::State Incoming::read() {
  try {
    if (handshake_) {
      const auto outcome = go_on(*handshake_, socket_);
      if (outcome == Handshake::Outcome::open) return State::nothing;
      handshake_.reset();
      if (outcome != Handshake::Outcome::proven) return State::ended;
    }
    if (greeted_ < sizeof(Greeting)) {
      const auto full = fill(std::as_writable_bytes(std::span(&greeting_, 1)), greeted_);
      if (!full) return State::ended;
      if (!*full) return State::nothing;
      if (greeting_.nonce != nonce_ || greeting_.rank < 0 || greeting_.rank > std::numeric_limits<int>::max()) {
        greeted_ = 0;  // whoever that is
        return State::ended;
      }
    }
    if (body_) {
      do {
        const auto full = fill(body_->to, body_->read);
        if (!full) return State::ended;
        if (!*full) return State::nothing;
      } while (body_->next_piece());
      return State::message;
    }
    const auto full = fill(std::as_writable_bytes(std::span(&letter_, 1)), letter_read_);
    if (!full) return State::ended;
    if (!*full) return State::nothing;
    letter_read_ = 0;
    return State::letter;
  } catch (const std::system_error&) {
    return State::ended;
  }
}

}  // namespace tutti::comm
