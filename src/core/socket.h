#pragma once
// Non-blocking TCP sockets, and Unix sockets of one user. A forked child does not share them. Functions that throw for
// a failed system call throw std::system_error.
#include <sys/socket.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "core/file_descriptor.h"
#include "core/port_range.h"

namespace tutti {

/// A numeric host address and a port.
struct SocketAddress {
  std::string host;
  int port = 0;
};

/// The host of this machine that no other machine reaches.
inline constexpr const char* loopback_host = "127.0.0.1";

/// HOST:PORT for messages, with brackets around an IPv6 address.
std::string format_address(const std::string& host, int port);

struct ListeningSocket {
  FileDescriptor socket;
  SocketAddress address;
};

/// The same address as the functions of sockets take it.
inline const sockaddr* pointer_to(const sockaddr_storage& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}
/// The addresses of a host without a port, in the order in which to try them, with the AI_ flags of getaddrinfo().
/// Empty if there is none; then `failure` is the reason for gai_strerror(), otherwise 0.
std::vector<sockaddr_storage> resolve(const std::string& host, int flags, int* failure = nullptr);
/// Throws std::system_error if the host is no numeric address.
sockaddr_storage numeric_address(const SocketAddress& address);
/// The numeric address without the port; empty if it is none.
std::string numeric_host(const sockaddr* address);
/// Whether a numeric address is one that other machines cannot reach, because it means the machine itself.
bool is_loopback(const std::string& host);
/// The numeric addresses of a host name; empty if the name cannot be resolved.
std::vector<std::string> resolve_host(const std::string& host);
/// The numeric address of a network interface: IPv4 before IPv6, and a link-local IPv6 address, which other machines
/// may be unable to use, last. Throws UsageError if it has none.
std::string interface_address(const std::string& interface);
/// The numeric address of the first network interface that is up and not loopback, by the same order; nullopt if there
/// is none.
std::optional<std::string> first_network_address();

/// Listens on a free port of `host`, which is a numeric address. Throws std::system_error, and UsageError if every port
/// of `ports` is in use.
ListeningSocket listen_tcp(const std::string& host, const PortRange& ports = {});
/// Starts to connect. The connection is established or has failed when the socket becomes writable; then call
/// finish_connect(). Throws std::system_error.
FileDescriptor connect_nonblocking(const SocketAddress& address);
/// Throws std::system_error if connecting has failed.
void finish_connect(const FileDescriptor& socket);
/// Starts to connect to an abstract Unix socket. Throws std::system_error; the connection is refused at once.
FileDescriptor connect_local(const std::string& name);
/// Listens at an abstract Unix socket, which exists until it is closed. Throws std::system_error.
FileDescriptor listen_local(const std::string& name);
/// Whether the process at the other end of a Unix socket runs as the user of this process.
bool is_same_user(const FileDescriptor& socket);
/// Accepts one connection; nullopt if no connection is pending.
std::optional<FileDescriptor> try_accept(const FileDescriptor& listening);
void set_nonblocking(const FileDescriptor& socket);
/// Whether bytes are in flight that the peer's kernel has not acknowledged. False where it has no memory for more,
/// because its process reads nothing, and acknowledges the probes.
bool has_unacknowledged_bytes(const FileDescriptor& socket);
/// How long ago the peer's kernel has acknowledged bytes or sent some. Zero for a Unix socket.
std::chrono::milliseconds since_last_acknowledgement(const FileDescriptor& socket);
/// Ends the connection about `timeout` after the peer's machine has lost power or was cut off, also if no bytes wait.
void set_keepalive(const FileDescriptor& socket, std::chrono::milliseconds timeout);
/// Also ends it about `timeout` after bytes, or an attempt to connect, that the peer's kernel does not acknowledge, and
/// if its process reads nothing for as long. 0: the system's time.
void set_user_timeout(const FileDescriptor& socket, std::chrono::milliseconds timeout);
/// Disables Nagle's algorithm, so that a small message is sent without waiting for earlier ones.
void set_tcp_nodelay(const FileDescriptor& socket);
/// The address of this end; for a socket that listens at all addresses the loopback address. Throws std::system_error.
SocketAddress local_address_of(int descriptor);
/// The address and port of the peer, for messages.
std::string describe_peer(const FileDescriptor& socket);

}  // namespace tutti
