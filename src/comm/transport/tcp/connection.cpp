#include "comm/transport/tcp/connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <system_error>
#include <utility>

namespace tutti::comm {
namespace {

constexpr std::size_t buffer_bytes = 32 * 1024;
constexpr std::size_t discard_bytes = 64 * 1024;

[[noreturn]] void throw_ended() {
  throw std::system_error(ECONNRESET, std::generic_category(), "greeting");
}

}  // namespace

std::string EndpointAddress::to_text() const {
  std::ostringstream text;
  text << socket.host << ' ' << socket.port << ' ' << nonce[0] << ' ' << nonce[1];
  return text.str();
}

std::optional<EndpointAddress> EndpointAddress::from_text(const std::string& text) {
  std::istringstream words(text);
  EndpointAddress address;
  if (!(words >> address.socket.host >> address.socket.port >> address.nonce[0] >> address.nonce[1])) return {};
  return address;
}

Connection::Connection(const EndpointAddress& address, int own_rank, int rank, const ConnectionSecurity& security)
    : socket_(connect_nonblocking(address.socket)),
      initiator_(true),
      encrypts_(security.encrypts()),
      rank_(rank),
      step_(Step::connecting),
      hello_{.nonce = address.nonce, .rank = own_rank} {
  if (const auto* const tls = security.tls(coordinator::Side::client)) {
    encrypted_.emplace(socket_.get(), *tls);
  }
}

Connection::Connection(FileDescriptor socket, const ConnectionSecurity& security, Deadline since)
    : socket_(std::move(socket)),
      initiator_(false),
      encrypts_(security.encrypts()),
      since_(since),
      step_(Step::proving) {
  set_tcp_nodelay(socket_);
  if (const auto* const tls = security.tls(coordinator::Side::server)) {
    encrypted_.emplace(socket_.get(), *tls);
  }
}

bool Connection::receive_exactly(std::span<std::byte> bytes) {
  while (received_ < bytes.size()) {
    const auto missing = bytes.subspan(received_);
    const iovec part{.iov_base = missing.data(), .iov_len = missing.size()};
    const auto count = encrypted_ ? encrypted_->read({&part, 1}) : ::readv(socket_.get(), &part, 1);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (count <= 0) throw_ended();
    received_ += static_cast<std::size_t>(count);
  }
  received_ = 0;
  return true;
}

// The socket's buffer is empty, so a few bytes always fit.
void Connection::send_all(std::span<const std::byte> bytes) {
  iovec part{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
  if (write({&part, 1}) != static_cast<ssize_t>(bytes.size()) || has_unsent()) throw_ended();
}

Connection::Greeting Connection::greet() {
  if (step_ == Step::connecting) {
    finish_connect(socket_);
    step_ = Step::proving;
  }
  if (step_ == Step::proving) {
    const auto state = encrypted_ ? encrypted_->handshake() : EncryptedSocket::State::open;
    if (state == EncryptedSocket::State::handshake) return Greeting::pending;
    if (state != EncryptedSocket::State::open) return Greeting::not_authenticated;
    if (initiator_) send_all(std::as_bytes(std::span(&hello_, 1)));
    step_ = initiator_ ? Step::verdict : Step::hello;
  }
  if (step_ == Step::hello) {
    return receive_exactly(std::as_writable_bytes(std::span(&hello_, 1))) ? Greeting::hello : Greeting::pending;
  }
  if (step_ == Step::verdict) {
    if (!receive_exactly(std::as_writable_bytes(std::span(&verdict_, 1)))) return Greeting::pending;
    if (verdict_ == Verdict::duplicate) return Greeting::duplicate;
    if (verdict_ != Verdict::accepted) throw_ended();
    open();
  }
  return Greeting::open;
}

void Connection::answer(Verdict verdict) {
  send_all(std::as_bytes(std::span(&verdict, 1)));
  if (verdict == Verdict::accepted) open();
}

void Connection::open() {
  step_ = Step::open;
  if (encrypts_ || !encrypted_) return;
  // The peer's first frames may have come with the last record of TLS.
  buffer_ = encrypted_->take_unread();
  end_ = buffer_.size();
  encrypted_.reset();
}

void Connection::finish_sending() const {
  ::shutdown(socket_.get(), SHUT_WR);
}

ssize_t Connection::write(std::span<iovec> parts) {
  if (encrypted_) return encrypted_->write(parts);
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  return ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/// `count` bytes of the body have come.
void Connection::take(std::size_t count) {
  if (body.to != nullptr) body.to += count;
  body.left -= count;
}

Connection::Read Connection::read() {
  if (buffer_.size() < buffer_bytes) buffer_.resize(buffer_bytes);
  if (body.left > 0 && begin_ < end_) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(body.left, end_ - begin_));
    if (body.to != nullptr) std::memcpy(body.to, buffer_.data() + begin_, count);
    begin_ += count;
    take(count);
    return Read::progress;
  }
  if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (buffer_.size() - begin_ < sizeof(FrameHeader)) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= std::exchange(begin_, 0);
  }
  if (body.left > 0 && body.to == nullptr) discarded_.resize(discard_bytes);
  const auto wanted =
      static_cast<std::size_t>(body.to != nullptr ? body.left : std::min<std::uint64_t>(body.left, discarded_.size()));
  const std::array<iovec, 2> parts{{{.iov_base = body.to != nullptr ? body.to : discarded_.data(), .iov_len = wanted},
                                    {.iov_base = buffer_.data() + end_, .iov_len = buffer_.size() - end_}}};
  const bool only_body = wanted < body.left;  // what follows these bytes is no header yet
  const auto used = std::span(parts).first(only_body ? 1 : 2);
  const auto count =
      encrypted_ ? encrypted_->read(used) : ::readv(socket_.get(), used.data(), static_cast<int>(used.size()));
  if (count < 0 && errno == EINTR) return Read::progress;
  if (count < 0) return errno == EAGAIN ? Read::drained : Read::closed;
  if (count == 0) return Read::closed;
  const auto in_body = std::min(static_cast<std::size_t>(count), wanted);
  take(in_body);
  end_ += static_cast<std::size_t>(count) - in_body;
  return Read::progress;
}

std::optional<FrameHeader> Connection::next_header() {
  if (body.left > 0 || end_ - begin_ < sizeof(FrameHeader)) return std::nullopt;
  FrameHeader header;
  std::memcpy(&header, buffer_.data() + begin_, sizeof(header));
  begin_ += sizeof(header);
  return header;
}

}  // namespace tutti::comm
