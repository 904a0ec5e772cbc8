#include "comm/transport/tcp/connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
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

/// The state of the greeting after a read or write that returned `count`.
Connection::Greeting unfinished(ssize_t count) {
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return Connection::Greeting::pending;
  if (count < 0 && errno == coordinator::ByteSocket::unauthenticated) return Connection::Greeting::not_authenticated;
  throw_ended();
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
    : socket_(connect_nonblocking(address.socket), security.tls(coordinator::Side::client)),
      initiator_(true),
      encrypts_(security.encrypts()),
      rank_(rank),
      step_(Step::connecting),
      hello_{.nonce = address.nonce, .rank = own_rank} {}

Connection::Connection(FileDescriptor socket, const ConnectionSecurity& security, Deadline since)
    : socket_(std::move(socket), security.tls(coordinator::Side::server)),
      initiator_(false),
      encrypts_(security.encrypts()),
      since_(since),
      step_(Step::hello) {
  set_tcp_nodelay(socket_.descriptor());
}

/// Returns nullopt once all bytes have come.
std::optional<Connection::Greeting> Connection::receive(std::span<std::byte> bytes) {
  while (received_ < bytes.size()) {
    const auto missing = bytes.subspan(received_);
    const iovec part{.iov_base = missing.data(), .iov_len = missing.size()};
    const auto count = socket_.read({&part, 1});
    if (count <= 0) return unfinished(count);
    received_ += static_cast<std::size_t>(count);
  }
  received_ = 0;
  return std::nullopt;
}

/// Returns nullopt once all bytes are sent. The socket's buffer is empty, so these few always fit.
std::optional<Connection::Greeting> Connection::send(std::span<std::byte> bytes) {
  const iovec part{.iov_base = bytes.data(), .iov_len = bytes.size()};
  const auto count = write({&part, 1});
  if (count < 0) return unfinished(count);
  if (count != static_cast<ssize_t>(bytes.size()) || has_unsent()) throw_ended();
  return std::nullopt;
}

Connection::Greeting Connection::greet() {
  if (step_ == Step::connecting) {
    finish_connect(socket_.descriptor());
    step_ = Step::hello;
  }
  if (step_ == Step::hello) {
    const auto hello = std::as_writable_bytes(std::span(&hello_, 1));
    if (const auto result = initiator_ ? send(hello) : receive(hello)) return *result;
    if (!initiator_) return Greeting::hello;
    step_ = Step::verdict;
  }
  if (step_ == Step::verdict) {
    if (const auto result = receive(std::as_writable_bytes(std::span(&verdict_, 1)))) return *result;
    if (verdict_ == Verdict::duplicate) return Greeting::duplicate;
    if (verdict_ != Verdict::accepted) throw_ended();
    open();
  }
  return Greeting::open;
}

void Connection::answer(Verdict verdict) {
  if (send(std::as_writable_bytes(std::span(&verdict, 1)))) throw_ended();
  if (verdict == Verdict::accepted) open();
}

void Connection::open() {
  step_ = Step::open;
  if (encrypts_) return;
  buffer_ = socket_.continue_plain();  // the peer's first frames may have come with its last record
  end_ = buffer_.size();
}

void Connection::finish_sending() const {
  ::shutdown(descriptor(), SHUT_WR);
}

/// `count` bytes of the body have come.
void Connection::take(std::size_t count) {
  if (body.to != nullptr) body.to += count;
  body.left -= count;
}

Connection::Read Connection::read() noexcept {
  try {
    return read_bytes();
  } catch (const std::bad_alloc&) {
    error_ = ENOMEM;
    return Read::closed;
  }
}

Connection::Read Connection::read_bytes() {
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
  const auto count = socket_.read(std::span(parts).first(only_body ? 1 : 2));
  if (count < 0 && errno == EINTR) return Read::progress;
  if (count < 0 && errno == EAGAIN) return Read::drained;
  if (count < 0) error_ = errno;
  if (count <= 0) return Read::closed;
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
