#pragma once
// The reads and writes of a connection over TLS. Each returns what the system's call for a plain socket returns.
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "coordinator/tls_session.h"

namespace tutti::comm {

/// One thread may read while another one writes.
class EncryptedSocket {
 public:
  EncryptedSocket(int descriptor, const coordinator::TlsContext& context) : descriptor_(descriptor), tls_(context) {}

  using State = coordinator::TlsSession::State;
  /// Takes the handshake as far as it goes now. Throws std::system_error when the connection has ended.
  State handshake();
  /// Like readv(). EAGAIN: all bytes that the socket held are read and decrypted.
  ssize_t read(std::span<const iovec> parts);
  /// Like sendmsg(): the number of bytes that were encrypted. They may wait here until the socket is writable.
  ssize_t write(std::span<const iovec> parts);
  /// Whether encrypted bytes wait for a write(). For the thread that writes.
  bool has_unsent() const { return sent_ < unsent_.size(); }
  /// Takes the received bytes that are not of TLS.
  std::vector<std::byte> take_unread() { return tls_.take_unread(); }

 private:
  bool flush();
  ssize_t receive();
  std::size_t decrypt(std::span<const iovec> parts);

  const int descriptor_;
  coordinator::TlsSession tls_;
  std::string unsent_;  // encrypted
  std::size_t sent_ = 0;
  std::vector<std::byte> record_;  // short parts that are encrypted together
};

}  // namespace tutti::comm
