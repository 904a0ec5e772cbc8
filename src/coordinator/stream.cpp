#include "coordinator/stream.h"

#include <openssl/err.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <new>
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
  ssl_.reset(SSL_new(tls->get()));
  BIO* const incoming = BIO_new(BIO_s_mem());
  BIO* const outgoing = BIO_new(BIO_s_mem());
  if (ssl_ == nullptr || incoming == nullptr || outgoing == nullptr) throw std::bad_alloc();
  SSL_set_bio(ssl_.get(), incoming, outgoing);
  if (tls->side() == Side::server) {
    SSL_set_accept_state(ssl_.get());
  } else {
    SSL_set_connect_state(ssl_.get());
    handshake();
  }
}

void Stream::send(std::string_view frame) {
  if (state_ != State::open) return;
  if (before_handshake_.size() + outgoing_.size() + frame.size() > max_unsent_bytes) return fail(State::congested);
  if (!is_authenticated_) {
    before_handshake_.append(frame);
    return;
  }
  if (ssl_ == nullptr) {
    outgoing_.append(frame);
  } else {
    ERR_clear_error();
    while (!frame.empty()) {
      const auto size = static_cast<int>(std::min<std::size_t>(frame.size(), INT_MAX));
      if (SSL_write(ssl_.get(), frame.data(), size) != size) return fail(State::damaged);
      frame.remove_prefix(static_cast<std::size_t>(size));
    }
    take_encrypted();
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
    if (ssl_ == nullptr) {
      frames_.append({buffer.data(), static_cast<std::size_t>(count)});
    } else {
      BIO_write(SSL_get_rbio(ssl_.get()), buffer.data(), static_cast<int>(count));
      handshake();
      decrypt();
    }
    if (state_ != State::open || static_cast<std::size_t>(count) < buffer.size()) return;
  }
}

void Stream::handshake() {
  if (is_authenticated_ || state_ != State::open) return;
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  take_encrypted();  // also the alert that tells the peer
  const int error = SSL_get_error(ssl_.get(), result);
  if (result == 1) {
    // External keys are resumed sessions to OpenSSL: any other handshake proves nothing.
    if (SSL_session_reused(ssl_.get()) != 1) return fail(State::unauthenticated);
    is_authenticated_ = true;
    const auto waiting = std::exchange(before_handshake_, {});
    if (!waiting.empty()) send(waiting);
  } else if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) {
    flush();
    return fail(State::unauthenticated);
  }
  flush();
}

void Stream::decrypt() {
  std::array<char, read_bytes> buffer;
  while (is_authenticated_ && state_ == State::open) {
    ERR_clear_error();
    const int count = SSL_read(ssl_.get(), buffer.data(), static_cast<int>(buffer.size()));
    if (count > 0) {
      frames_.append({buffer.data(), static_cast<std::size_t>(count)});
      continue;
    }
    const int error = SSL_get_error(ssl_.get(), count);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) break;
    // A client learns only after its own handshake that the server has refused its proof.
    fail(error == SSL_ERROR_ZERO_RETURN ? State::closed : State::unauthenticated);
  }
  take_encrypted();
  flush();
}

void Stream::take_encrypted() {
  char* data = nullptr;
  BIO* const encrypted = SSL_get_wbio(ssl_.get());
  const auto size = BIO_get_mem_data(encrypted, &data);
  if (size <= 0) return;
  outgoing_.append(data, static_cast<std::size_t>(size));
  (void)BIO_reset(encrypted);
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
