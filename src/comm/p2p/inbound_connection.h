#pragma once
// The connection on which the messages of one other rank arrive.
#include <poll.h>

#include <optional>
#include <vector>

#include "comm/p2p/outbound_connection.h"
#include "comm/p2p/tag_matcher.h"

namespace tutti::comm {

/// Used by one thread at a time.
class InboundConnection {
 public:
  /// It asks for a proof of `secret`, unless that is null.
  InboundConnection(FileDescriptor socket, const Nonce& nonce, const JobSecretPtr& secret, Deadline since);

  int descriptor() const { return socket_.get(); }
  /// In the job; -1 until it has said it.
  int rank() const { return hello_read_ == sizeof(Hello) ? static_cast<int>(hello_.rank) : -1; }
  /// When it connected.
  Deadline since() const { return since_; }
  std::optional<Body>& body() { return body_; }

  enum class State {
    would_block,  ///< nothing more is there now
    header,       ///< header() has come: give it a body
    message,      ///< body() is complete: take it
    closed,
  };
  /// Reads until something has happened. Throws nothing.
  State read();
  const MessageHeader& header() const { return header_; }
  /// The message behind the header stays on the wire for now.
  bool is_paused() const { return paused_; }
  void set_paused(bool paused) { paused_ = paused; }

 private:
  /// Whether `to` is full; fills it from `read` on. Nothing: the connection has ended.
  std::optional<bool> fill(std::span<std::byte> to, std::size_t& read);

  FileDescriptor socket_;
  Nonce nonce_;
  Deadline since_;
  std::optional<Handshake> handshake_;  // until it is over
  Hello hello_;
  std::size_t hello_read_ = 0;
  MessageHeader header_;
  std::size_t header_read_ = 0;
  bool paused_ = false;
  std::optional<Body> body_;
};

}  // namespace tutti::comm
