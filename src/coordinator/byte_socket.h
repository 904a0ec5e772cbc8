#pragma once
// Reads and writes of a non-blocking socket, plain or over TLS. Each returns what the system's call returns.
#include <sys/types.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "coordinator/tls_session.h"
#include "core/file_descriptor.h"

namespace tutti::coordinator {

/// The first reads and writes run the handshake of TLS; until is_authenticated() they fail with EAGAIN, or with EPIPE
/// if the peer has closed the connection. Then one thread may read while another one writes.
class ByteSocket {
 public:
  /// The value of errno if the peer does not know the job's secret, or has sent bytes that its TLS does not send.
  static constexpr int unauthenticated = EKEYREJECTED;
  static constexpr std::size_t receive_bytes = std::size_t{64} << 10;
  /// A read of as many bytes leaves none that only need to be decrypted: a part of a record may have come before.
  static constexpr std::size_t max_decrypted_bytes = receive_bytes + tls_record_bytes;

  /// `tls`: null for a plain socket; must outlive the handshake.
  ByteSocket(FileDescriptor socket, const TlsContext* tls);

  const FileDescriptor& descriptor() const { return socket_; }
  /// Whether the peer has proved that it knows the job's secret. True without TLS.
  bool is_authenticated() const { return is_authenticated_; }

  /// Like readv(). EAGAIN: all bytes that the socket held are read and decrypted.
  ssize_t read(std::span<const iovec> parts);
  /// Like sendmsg(). With TLS the number of bytes that were encrypted. They may wait here until the socket is writable.
  ssize_t write(std::span<const iovec> parts);
  /// Whether encrypted bytes wait for a write(), which may have no parts. For the thread that writes.
  bool has_unsent() const { return sent_ < unsent_.size(); }
  /// Continues without TLS. Returns the plain bytes that have been received. Nothing may be unsent.
  std::vector<std::byte> continue_plain();

 private:
  bool handshake();
  bool flush();
  ssize_t receive();
  std::size_t decrypt(std::span<const iovec> parts);

  FileDescriptor socket_;
  std::unique_ptr<TlsSession> tls_;  // null for a plain socket
  bool is_authenticated_;
  std::string unsent_;  // encrypted
  std::size_t sent_ = 0;
  std::vector<std::byte> record_;  // not yet a full record
};

}  // namespace tutti::coordinator
