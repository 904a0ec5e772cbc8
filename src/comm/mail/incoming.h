#pragma once
// The letters that come from one other rank.
#include <poll.h>

#include <optional>
#include <vector>

#include "comm/mail/outgoing.h"
#include "comm/mail/sorting_room.h"

namespace tutti::comm {

/// Used by one thread at a time.
class Incoming {
 public:
  /// It asks for a proof of `secret`, unless that is null.
  Incoming(FileDescriptor socket, const Nonce& nonce, const JobSecretPtr& secret, Deadline since);

  int descriptor() const { return socket_.get(); }
  /// In the job; -1 until it has said it.
  int rank() const { return greeted_ == sizeof(Greeting) ? static_cast<int>(greeting_.rank) : -1; }
  /// When it connected.
  Deadline since() const { return since_; }
  std::optional<Body>& body() { return body_; }

  enum class State {
    nothing,  ///< nothing more is there now
    letter,   ///< letter() has come: give it a body
    message,  ///< body() is complete: take it
    ended,
  };
  /// Reads until something has happened. Throws nothing.
  State read();
  const Letter& letter() const { return letter_; }
  /// The message behind the letter stays on the wire for now.
  bool is_held() const { return held_; }
  void hold(bool held) { held_ = held; }

 private:
  /// Whether `to` is full; fills it from `read` on. Nothing: the connection has ended.
  std::optional<bool> fill(std::span<std::byte> to, std::size_t& read);

  FileDescriptor socket_;
  Nonce nonce_;
  Deadline since_;
  std::optional<Handshake> handshake_;  // until it is over
  Greeting greeting_;
  std::size_t greeted_ = 0;
  Letter letter_;
  std::size_t letter_read_ = 0;
  bool held_ = false;
  std::optional<Body> body_;
};

}  // namespace tutti::comm
