#include "comm/members/knock.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <system_error>
#include <vector>

namespace tutti::comm {
namespace {

using KnockClock = std::chrono::steady_clock;

/// Waits until the socket can be used so. Returns false where that takes until `until`.
bool can_be_used(const FileDescriptor& socket, short how, KnockClock::time_point until) {
  pollfd one{.fd = socket.get(), .events = how, .revents = 0};
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - KnockClock::now()).count();
    if (left <= 0) return false;
    const int found = ::poll(&one, 1, static_cast<int>(left));
    if (found > 0) return true;
    if (found < 0 && errno != EINTR) throw std::system_error(errno, std::generic_category(), "poll");
  }
}

// As c10d's own client begins: its mark, and a number that its store says back. Where that changes, a store that asks
// for no proof is no more than silent.
bool answers_as_store(const FileDescriptor& socket) {
  constexpr auto patience_with_a_store = std::chrono::milliseconds(500);
  constexpr std::array<std::uint8_t, 10> request{0x00, 0xce, 0xf7, 0x85, 0x3c, 0x0d, 't', 'u', 't', '2'};
  constexpr std::size_t number = 6;
  std::array<std::byte, request.size() - number> answer{};
  try {
    write_some(socket, std::as_bytes(std::span(request)));
    return can_be_used(socket, POLLIN, KnockClock::now() + patience_with_a_store) &&
           read_some(socket, answer) == answer.size() &&
           std::ranges::equal(answer, std::as_bytes(std::span(request)).subspan(number));
  } catch (const std::system_error&) {
    return false;
  }
}

}  // namespace

Handshake::Outcome go_on(Handshake& handshake, const FileDescriptor& socket) {
  while (handshake.outcome() == Handshake::Outcome::open) {
    if (const auto out = handshake.to_send(); !out.empty()) {
      const auto count = write_some(socket, out);
      if (count == 0) break;
      handshake.sent(count);
      continue;
    }
    const auto count = read_some(socket, handshake.to_receive());
    if (!count) throw std::system_error(ECONNRESET, std::generic_category(), "proving the job's secret");
    if (*count == 0) break;
    handshake.received(*count);
  }
  return handshake.outcome();
}

Knocked knock(const SocketAddress& address, const JobSecretPtr& secret, const std::string& subject,
              std::chrono::milliseconds patience) {
  using Answer = Knocked::Answer;
  const auto until = KnockClock::now() + patience;
  try {
    const auto socket = begin_to_connect(address);
    if (!can_be_used(socket, POLLOUT, until)) return {Answer::nobody, "no connection in time"};
    finish_connecting(socket);
    Handshake handshake(Handshake::Side::calls, secret, subject);
    for (;;) {
      switch (go_on(handshake, socket)) {
        case Handshake::Outcome::proven:
          return {Answer::proven};
        case Handshake::Outcome::refused:
          return {Answer::refused};
        case Handshake::Outcome::unproven:
          return {Answer::unproven};
        case Handshake::Outcome::open:
          break;
      }
      const bool writes = !handshake.to_send().empty();
      if (can_be_used(socket, writes ? POLLOUT : POLLIN, until)) continue;
      return {handshake.has_heard() || !answers_as_store(socket) ? Answer::silent : Answer::open_store};
    }
  } catch (const std::system_error& error) {
    return {Answer::nobody, error.what()};
  }
}

bool asks_for_proof(const SocketAddress& address, std::chrono::milliseconds patience) {
  const auto until = KnockClock::now() + patience;
  try {
    const auto socket = begin_to_connect(address);
    if (!can_be_used(socket, POLLOUT, until)) return false;
    finish_connecting(socket);
    const auto mark = greeting_mark();
    std::vector<std::byte> heard(mark.size());
    std::size_t size = 0;
    while (size < heard.size()) {
      if (!can_be_used(socket, POLLIN, until)) return false;
      const auto count = read_some(socket, std::span(heard).subspan(size));
      if (!count) return false;
      size += *count;
    }
    return std::ranges::equal(heard, mark);
  } catch (const std::system_error&) {
    return false;
  }
}

}  // namespace tutti::comm
