#include "comm/auth/auth_client.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <system_error>
#include <vector>

namespace tutti::comm {
namespace {

using AuthClock = std::chrono::steady_clock;

/// Waits until the socket can be used so. Returns false where that takes until `until`.
bool wait_until_ready(const FileDescriptor& socket, short events, AuthClock::time_point until) {
  pollfd poll_fd{.fd = socket.get(), .events = events, .revents = 0};
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - AuthClock::now()).count();
    if (left <= 0) return false;
    const int found = ::poll(&poll_fd, 1, static_cast<int>(left));
    if (found > 0) return true;
    if (found < 0 && errno != EINTR) throw std::system_error(errno, std::generic_category(), "poll");
  }
}

// As c10d's own client begins: its mark, and a number that its store says back. Where that changes, a store that asks
// for no proof is no more than silent.
bool is_open_tcp_store(const FileDescriptor& socket) {
  constexpr auto store_reply_timeout = std::chrono::milliseconds(500);
  constexpr std::array<std::uint8_t, 10> request{0x00, 0xce, 0xf7, 0x85, 0x3c, 0x0d, 't', 'u', 't', '2'};
  constexpr std::size_t number = 6;
  std::array<std::byte, request.size() - number> reply{};
  try {
    try_write(socket, std::as_bytes(std::span(request)));
    return wait_until_ready(socket, POLLIN, AuthClock::now() + store_reply_timeout) &&
           try_read(socket, reply) == reply.size() &&
           std::ranges::equal(reply, std::as_bytes(std::span(request)).subspan(number));
  } catch (const std::system_error&) {
    return false;
  }
}

}  // namespace

Handshake::Outcome advance_handshake(Handshake& handshake, const FileDescriptor& socket) {
  while (handshake.outcome() == Handshake::Outcome::pending) {
    if (const auto out = handshake.to_send(); !out.empty()) {
      const auto count = try_write(socket, out);
      if (count == 0) break;
      handshake.sent(count);
      continue;
    }
    const auto count = try_read(socket, handshake.to_receive());
    if (!count) throw std::system_error(ECONNRESET, std::generic_category(), "proving the job's secret");
    if (*count == 0) break;
    handshake.received(*count);
  }
  return handshake.outcome();
}

AuthResult authenticate(const SocketAddress& address, const JobSecretPtr& secret, const std::string& subject,
                        std::chrono::milliseconds timeout) {
  using Status = AuthResult::Status;
  const auto until = AuthClock::now() + timeout;
  try {
    const auto socket = connect_nonblocking(address);
    if (!wait_until_ready(socket, POLLOUT, until)) return {Status::unreachable, "no connection in time"};
    finish_connect(socket);
    Handshake handshake(Handshake::Side::client, secret, subject);
    for (;;) {
      switch (advance_handshake(handshake, socket)) {
        case Handshake::Outcome::authenticated:
          return {Status::authenticated};
        case Handshake::Outcome::refused:
          return {Status::refused};
        case Handshake::Outcome::unauthenticated:
          return {Status::unauthenticated};
        case Handshake::Outcome::pending:
          break;
      }
      const bool writes = !handshake.to_send().empty();
      if (wait_until_ready(socket, writes ? POLLOUT : POLLIN, until)) continue;
      return {handshake.has_received() || !is_open_tcp_store(socket) ? Status::no_response : Status::no_auth_required};
    }
  } catch (const std::system_error& error) {
    return {Status::unreachable, error.what()};
  }
}

bool requires_authentication(const SocketAddress& address, std::chrono::milliseconds timeout) {
  const auto until = AuthClock::now() + timeout;
  try {
    const auto socket = connect_nonblocking(address);
    if (!wait_until_ready(socket, POLLOUT, until)) return false;
    finish_connect(socket);
    const auto magic = protocol_magic();
    std::vector<std::byte> received(magic.size());
    std::size_t size = 0;
    while (size < received.size()) {
      if (!wait_until_ready(socket, POLLIN, until)) return false;
      const auto count = try_read(socket, std::span(received).subspan(size));
      if (!count) return false;
      size += *count;
    }
    return std::ranges::equal(received, magic);
  } catch (const std::system_error&) {
    return false;
  }
}

}  // namespace tutti::comm
