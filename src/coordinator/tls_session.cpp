#include "coordinator/tls_session.h"

#include <openssl/err.h>

#include <algorithm>
#include <climits>
#include <new>

namespace tutti::coordinator {

TlsSession::TlsSession(const TlsContext& context, std::uint64_t records_per_key)
    : records_per_key_(records_per_key), ssl_(SSL_new(context.get())) {
  BIO* const incoming = BIO_new(BIO_s_mem());
  BIO* const outgoing = BIO_new(BIO_s_mem());
  if (ssl_ == nullptr || incoming == nullptr || outgoing == nullptr) {
    BIO_free(incoming);
    BIO_free(outgoing);
    throw std::bad_alloc();
  }
  SSL_set_bio(ssl_.get(), incoming, outgoing);
  if (context.side() == Side::server) {
    SSL_set_accept_state(ssl_.get());
  } else {
    SSL_set_connect_state(ssl_.get());
  }
}

void TlsSession::receive(std::span<const std::byte> encrypted) {
  const std::lock_guard lock(mutex_);
  const auto size = static_cast<int>(encrypted.size());
  if (size > 0 && BIO_write(SSL_get_rbio(ssl_.get()), encrypted.data(), size) != size) throw std::bad_alloc();
}

TlsSession::State TlsSession::handshake(std::string& to) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::handshake) return state_;
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  const int error = SSL_get_error(ssl_.get(), result);
  if (result == 1) {
    // External keys are resumed sessions to OpenSSL: any other handshake proves nothing.
    state_ = SSL_session_reused(ssl_.get()) == 1 ? State::open : State::unauthenticated;
  } else if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) {
    state_ = State::unauthenticated;
  }
  take_encrypted(to);
  return state_;
}

std::size_t TlsSession::decrypt(std::span<std::byte> to) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::open || to.empty()) return 0;
  ERR_clear_error();
  const auto size = static_cast<int>(std::min<std::size_t>(to.size(), INT_MAX));
  const int count = SSL_read(ssl_.get(), to.data(), size);
  if (count > 0) return static_cast<std::size_t>(count);
  const int error = SSL_get_error(ssl_.get(), count);
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return 0;
  // A client learns only after its own handshake that the server has refused its proof.
  state_ = error == SSL_ERROR_ZERO_RETURN ? State::closed : State::unauthenticated;
  return 0;
}

bool TlsSession::encrypt(std::span<const std::byte> record, std::string& to) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::open) return false;
  ERR_clear_error();
  if (records_ == records_per_key_) {
    records_ = 0;
    if (SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1) return false;
  }
  const auto size = static_cast<int>(record.size());
  if (SSL_write(ssl_.get(), record.data(), size) != size) return false;
  ++records_;
  take_encrypted(to);
  return true;
}

// OpenSSL takes whole records only, because it does not read ahead.
std::vector<std::byte> TlsSession::take_unread() {
  const std::lock_guard lock(mutex_);
  BIO* const incoming = SSL_get_rbio(ssl_.get());
  std::vector<std::byte> unread(BIO_ctrl_pending(incoming));
  if (!unread.empty()) BIO_read(incoming, unread.data(), static_cast<int>(unread.size()));
  return unread;
}

TlsSession::State TlsSession::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void TlsSession::take_encrypted(std::string& to) {
  char* data = nullptr;
  BIO* const encrypted = SSL_get_wbio(ssl_.get());
  const auto size = BIO_get_mem_data(encrypted, &data);
  if (size <= 0) return;
  to.append(data, static_cast<std::size_t>(size));
  (void)BIO_reset(encrypted);
}

}  // namespace tutti::coordinator
