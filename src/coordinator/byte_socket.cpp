#include "coordinator/byte_socket.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace tutti::coordinator {
namespace {

// Encrypted at once. Bytes that were encrypted count as sent, so few of them wait here for the socket.
constexpr std::size_t max_write_bytes = std::size_t{64} << 10;

ssize_t fail(int error) {
  errno = error;
  return -1;
}

std::span<std::byte> bytes_of(const iovec& part) {
  return {static_cast<std::byte*>(part.iov_base), part.iov_len};
}

}  // namespace

ByteSocket::ByteSocket(FileDescriptor socket, const TlsContext* tls)
    : socket_(std::move(socket)),
      tls_(tls == nullptr ? nullptr : std::make_unique<TlsSession>(*tls)),
      is_authenticated_(tls == nullptr) {}

ssize_t ByteSocket::read(std::span<const iovec> parts) {
  if (!tls_) return ::readv(socket_.get(), parts.data(), static_cast<int>(parts.size()));
  if (!is_authenticated_ && !handshake()) return -1;
  for (;;) {
    if (const auto count = decrypt(parts); count > 0) return static_cast<ssize_t>(count);
    if (const auto state = tls_->state(); state != TlsSession::State::open)
      return state == TlsSession::State::closed ? 0 : fail(unauthenticated);
    if (const auto count = receive(); count <= 0) return count;
  }
}

ssize_t ByteSocket::write(std::span<const iovec> parts) {
  if (!tls_) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts.data());
    message.msg_iovlen = parts.size();
    return ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  if ((!is_authenticated_ && !handshake()) || !flush()) return -1;
  std::size_t taken = 0;
  record_.clear();
  for (const iovec& part : parts) {
    auto bytes = bytes_of(part);
    bytes = bytes.first(std::min(bytes.size(), max_write_bytes - taken));
    taken += bytes.size();
    while (!bytes.empty()) {
      auto record = bytes.first(std::min(bytes.size(), tls_record_bytes - record_.size()));
      bytes = bytes.subspan(record.size());
      if (record.size() < tls_record_bytes) {  // joined with those of other parts
        record_.insert(record_.end(), record.begin(), record.end());
        if (record_.size() < tls_record_bytes) continue;
        record = record_;
      }
      if (!tls_->encrypt(record, unsent_)) return fail(EBADMSG);
      record_.clear();
    }
  }
  if (!record_.empty() && !tls_->encrypt(record_, unsent_)) return fail(EBADMSG);
  if (!flush() && errno != EAGAIN) return -1;
  return static_cast<ssize_t>(taken);
}

std::vector<std::byte> ByteSocket::continue_plain() {
  if (!tls_) return {};
  auto unread = tls_->take_unread();
  tls_.reset();
  return unread;
}

/// Takes the handshake as far as it goes now. Returns false, and sets errno, until it has succeeded.
bool ByteSocket::handshake() {
  for (;;) {
    const auto state = tls_->handshake(unsent_);
    const bool is_connected = flush() || errno == EAGAIN;
    if (state != TlsSession::State::handshake && state != TlsSession::State::open) {
      errno = unauthenticated;  // the alert is sent if the peer still reads
      return false;
    }
    if (!is_connected) return false;
    is_authenticated_ = state == TlsSession::State::open;
    if (is_authenticated_) return true;
    const auto count = receive();
    if (count == 0) errno = EPIPE;
    if (count <= 0) return false;
  }
}

/// Returns false, and sets errno, while encrypted bytes are left.
bool ByteSocket::flush() {
  while (has_unsent()) {
    const auto count =
        ::send(socket_.get(), unsent_.data() + sent_, unsent_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    sent_ += static_cast<std::size_t>(count);
  }
  unsent_.clear();
  sent_ = 0;
  return true;
}

/// Like recv(), for the bytes that decrypt() then finds.
ssize_t ByteSocket::receive() {
  std::array<std::byte, receive_bytes> buffer;
  ssize_t count = 0;
  do {
    count = ::recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  } while (count < 0 && errno == EINTR);
  if (count > 0) tls_->receive(std::span(buffer).first(static_cast<std::size_t>(count)));
  return count;
}

/// Returns the number of decrypted bytes; 0 if more must be received.
std::size_t ByteSocket::decrypt(std::span<const iovec> parts) {
  std::size_t all = 0;
  for (const iovec& part : parts) {
    auto to = bytes_of(part);
    while (!to.empty()) {
      const auto count = tls_->decrypt(to);
      if (count == 0) return all;
      all += count;
      to = to.subspan(count);
    }
  }
  return all;
}

}  // namespace tutti::coordinator
