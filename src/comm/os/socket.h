#pragma once
// Stream sockets that never block.
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/file_descriptor.h"

namespace tutti::comm {

/// A numeric address.
struct SocketAddress {
  std::string host;
  int port = 0;
};

struct ListeningSocket {
  FileDescriptor socket;
  SocketAddress address;
};

/// The numeric addresses that a host's name means; none where nobody knows it.
std::vector<std::string> resolve_host(const std::string& host);
/// The numeric address of a network interface. Throws UsageError where it has none.
std::string interface_address(const std::string& interface);

/// Listens on a free port of `host`. All throw std::system_error.
ListeningSocket listen_tcp(const std::string& host);
/// Begins to connect: the socket can be written to when it is.
FileDescriptor connect_nonblocking(const SocketAddress& address);
/// Throws where connecting has failed.
void finish_connect(const FileDescriptor& socket);
/// Somebody who connects; nullopt where there is nobody now.
std::optional<FileDescriptor> try_accept(const FileDescriptor& listening);
/// Small messages do not wait for one another.
void set_tcp_nodelay(const FileDescriptor& socket);
/// The address and port at the other end, for people.
std::string describe_peer(const FileDescriptor& socket);

/// How much was read; 0 where nothing is there now, nullopt at the other side's end. Throws where it broke.
std::optional<std::size_t> try_read(const FileDescriptor& socket, std::span<std::byte> to);
/// How much was taken; it may be 0. Throws where the connection has ended.
std::size_t try_write(const FileDescriptor& socket, std::span<const std::byte> from);

}  // namespace tutti::comm
