#pragma once
// One TLS connection. Bytes in, bytes out: its owner reads and writes the socket.
#include <openssl/ssl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "coordinator/tls.h"

namespace tutti::coordinator {

/// Thread safe: one thread may decrypt while another one encrypts.
class TlsSession {
 public:
  /// TLS 1.3 allows 2^24 records of full size with one key (RFC 8446, 5.5).
  static constexpr std::uint64_t default_records_per_key = std::uint64_t{1} << 22;

  /// `context` must outlive the handshake. Throws std::bad_alloc.
  explicit TlsSession(const TlsContext& context, std::uint64_t records_per_key = default_records_per_key);

  enum class State {
    handshake,        ///< the peer has not proved yet that it knows the secret
    open,             ///< it has
    unauthenticated,  ///< it does not know the secret, or has sent bytes that its TLS does not send
    closed,           ///< the peer has ended the connection with an alert
  };
  /// Bytes from the socket, less than 2 GiB.
  void receive(std::span<const std::byte> encrypted);
  /// Continues the handshake with the bytes that were received. Appends to `to` the bytes for the peer; after a failure
  /// these are an alert.
  State handshake(std::string& to);
  /// Decrypts received bytes. Returns the number of bytes written to `to`; 0: none until more are received, or the
  /// state is no longer `open`.
  std::size_t decrypt(std::span<std::byte> to);
  /// Appends the encrypted bytes to `to`. Returns false if the connection has failed. `record`: 1 to tls_record_bytes
  /// bytes, because OpenSSL's buffer stays as long as the longest write.
  bool encrypt(std::span<const std::byte> record, std::string& to);
  /// Takes the received bytes behind the last decrypted record, for a peer that continues without TLS.
  std::vector<std::byte> take_unread();
  State state() const;

 private:
  void take_encrypted(std::string& to);

  struct FreeSsl {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  const std::uint64_t records_per_key_;
  mutable std::mutex mutex_;
  std::unique_ptr<SSL, FreeSsl> ssl_;
  State state_ = State::handshake;
  std::uint64_t records_ = 0;  // sent with the present key
};

/// The size of the largest TLS record.
inline constexpr std::size_t tls_record_bytes = SSL3_RT_MAX_PLAIN_LENGTH;

}  // namespace tutti::coordinator
