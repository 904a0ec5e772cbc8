#include "comm/meeting/doorbell.h"

#include <poll.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace tutti::comm {
namespace {

constexpr int longest_ring_ms = 50;

}  // namespace

Doorbell::Doorbell(const std::string& host) {
  try {
    auto listening = listen_on(host);
    listening_ = std::move(listening.socket);
    address_ = std::move(listening.address);
  } catch (const std::system_error&) {
    // Others then learn of its end later, when no sign of life comes.
  }
}

void Doorbell::answer() {
  if (!address_) return;
  while (accept_from(listening_)) {
  }
}

Ring ring(const SocketAddress& address) {
  try {
    const auto socket = begin_to_connect(address);
    pollfd connected{.fd = socket.get(), .events = POLLOUT, .revents = 0};
    if (::poll(&connected, 1, longest_ring_ms) <= 0) return Ring::nothing;
    finish_connecting(socket);
    return Ring::heard;
  } catch (const std::system_error& error) {
    return error.code().value() == ECONNREFUSED ? Ring::refused : Ring::nothing;
  }
}

}  // namespace tutti::comm
