#pragma once
// Bytes of a non-blocking socket. Both functions throw std::system_error if the connection has failed.
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <optional>
#include <span>
#include <system_error>

#include "core/file_descriptor.h"

namespace tutti::test {

/// `count` as a number of bytes: 0 if none could be moved now.
inline std::size_t moved_bytes(ssize_t count) {
  if (count >= 0) return static_cast<std::size_t>(count);
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
  throw std::system_error(errno, std::generic_category(), "a socket");
}

/// Returns the number of bytes read: 0 if none are available now, nullopt if the peer has closed the connection.
inline std::optional<std::size_t> try_read(const FileDescriptor& socket, std::span<std::byte> to) {
  const auto count = ::recv(socket.get(), to.data(), to.size(), 0);
  if (count == 0) return std::nullopt;
  return moved_bytes(count);
}

/// Returns the number of bytes written, which may be 0.
inline std::size_t try_write(const FileDescriptor& socket, std::span<const std::byte> from) {
  return moved_bytes(::send(socket.get(), from.data(), from.size(), MSG_NOSIGNAL));
}

}  // namespace tutti::test
