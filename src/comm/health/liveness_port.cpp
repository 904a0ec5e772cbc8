#include "comm/health/liveness_port.h"

#include <poll.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace tutti::comm {
namespace {

constexpr int probe_timeout_ms = 50;

}  // namespace

LivenessPort::LivenessPort(const std::string& host) {
  try {
    auto listening = listen_tcp(host);
    listening_ = std::move(listening.socket);
    address_ = std::move(listening.address);
  } catch (const std::system_error&) {
    // Peers then detect the exit of this process later, by missed heartbeats.
  }
}

void LivenessPort::drain_connections() {
  if (!address_) return;
  while (try_accept(listening_)) {
  }
}

Probe probe(const SocketAddress& address) {
  try {
    const auto socket = connect_nonblocking(address);
    pollfd connected{.fd = socket.get(), .events = POLLOUT, .revents = 0};
    if (::poll(&connected, 1, probe_timeout_ms) <= 0) return Probe::no_reply;
    finish_connect(socket);
    return Probe::connected;
  } catch (const std::system_error& error) {
    return error.code().value() == ECONNREFUSED ? Probe::refused : Probe::no_reply;
  }
}

}  // namespace tutti::comm
