#include "comm/mail/incoming.h"

#include <system_error>

namespace tutti::comm {

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
    if (greeted_ < sizeof(Greeting)) {
      const auto full = fill(std::as_writable_bytes(std::span(&greeting_, 1)), greeted_);
      if (!full) return State::ended;
      if (!*full) return State::nothing;
      if (greeting_.nonce != nonce_) return State::ended;
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
