#include "coordinator/stream.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <span>
#include <utility>

namespace tutti::coordinator {
namespace {

constexpr std::size_t read_bytes = std::size_t{64} << 10;
constexpr int max_reads = 16;  // in a row from one connection
// A stopped rank reads nothing. Pushed events are small; this is enough for two of the longest answers.
constexpr std::size_t max_unsent_bytes = 3 * max_body_bytes;

}  // namespace

Stream::Stream(FileDescriptor socket, const TlsContext* tls)
    : socket_(std::move(socket)), is_authenticated_(tls == nullptr) {
  if (tls == nullptr) return;
  tls_ = std::make_unique<TlsSession>(*tls);
  if (tls->side() == Side::client) handshake();
}

void Stream::send(std::string_view frame) {
  if (state_ != State::open) return;
  if (before_handshake_.size() + outgoing_.size() + frame.size() > max_unsent_bytes) return fail(State::congested);
  if (!is_authenticated_) {
    before_handshake_.append(frame);
    return;
  }
  if (tls_ == nullptr) {
    outgoing_.append(frame);
  } else if (!tls_->encrypt(std::as_bytes(std::span(frame)), outgoing_)) {
    return fail(State::damaged);
  }
  flush();
}

Stream::State Stream::pump(const OnFrame& on_frame) {
  flush();
  if (state_ == State::open) read();
  try {
    frames_.take_frames(on_frame);
  } catch (const DamagedFrame&) {
    state_ = State::damaged;
  }
  return state_;
}

void Stream::read() {
  std::array<char, read_bytes> buffer;
  for (int round = 0; round < max_reads; ++round) {
    const auto count = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (count == 0 || (count < 0 && errno == EPIPE)) return fail(was_reset_ ? State::reset : State::closed);
    if (count < 0) return fail(errno == ECONNRESET ? State::reset : State::network_error);
    if (tls_ == nullptr) {
      frames_.append({buffer.data(), static_cast<std::size_t>(count)});
    } else {
      tls_->receive(std::as_bytes(std::span(buffer)).first(static_cast<std::size_t>(count)));
      handshake();
      decrypt();
    }
    if (state_ != State::open || static_cast<std::size_t>(count) < buffer.size()) return;
  }
}

void Stream::handshake() {
  if (is_authenticated_ || state_ != State::open) return;
  const auto result = tls_->handshake(outgoing_);
  flush();  // also the alert that tells the peer
  if (result == TlsSession::State::handshake) return;
  if (result != TlsSession::State::open) return fail(State::unauthenticated);
  is_authenticated_ = true;
  const auto waiting = std::exchange(before_handshake_, {});
  if (!waiting.empty()) send(waiting);
}

void Stream::decrypt() {
  std::array<char, read_bytes> buffer;
  while (is_authenticated_ && state_ == State::open) {
    const auto count = tls_->decrypt(std::as_writable_bytes(std::span(buffer)));
    if (count > 0) {
      frames_.append({buffer.data(), count});
      continue;
    }
    if (const auto now = tls_->state(); now != TlsSession::State::open) {
      fail(now == TlsSession::State::closed ? State::closed : State::unauthenticated);
    }
    return;
  }
}

void Stream::flush() {
  while (sent_ < outgoing_.size()) {
    const auto count = ::send(socket_.get(), outgoing_.data() + sent_, outgoing_.size() - sent_, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (count < 0) {
      // The peer may have sent frames before: read() ends the stream after them.
      was_reset_ = was_reset_ || errno == ECONNRESET;
      if (errno == EPIPE || errno == ECONNRESET) break;
      return fail(State::network_error);
    }
    sent_ += static_cast<std::size_t>(count);
  }
  outgoing_.clear();
  sent_ = 0;
}

const char* describe_end(Stream::State state) {
  switch (state) {
    case Stream::State::unauthenticated:
      return "it does not know this rank's secret";
    case Stream::State::closed:
      return "it closed the connection";
    case Stream::State::reset:
      return "it reset the connection";
    case Stream::State::damaged:
      return "it sent bytes that no coordinator sends";
    default:
      return "the network failed";
  }
}

void Stream::fail(State state) {
  if (state_ == State::open) state_ = state;
}

}  // namespace tutti::coordinator
