#include "coordinator/stream.h"

#include <sys/epoll.h>

#include <array>
#include <cerrno>
#include <span>
#include <utility>

namespace tutti::coordinator {
namespace {

constexpr ssize_t short_read = ByteSocket::receive_bytes / 2;  // the socket held no more
constexpr int max_reads = 16;                                  // in a row from one connection

}  // namespace

void Stream::send(std::string_view frame) {
  if (state_ != State::open) return;
  if (sent_ >= outgoing_.size() - sent_) outgoing_.erase(0, std::exchange(sent_, 0));
  outgoing_.append(frame);
  flush();
}

Stream::State Stream::pump(const OnFrame& on_frame) {
  has_progressed_ = false;
  flush();
  if (state_ == State::open && !is_congested()) read();
  try {
    frames_.take_frames(on_frame, [this] { return !is_congested(); });
  } catch (const DamagedFrame&) {
    state_ = State::damaged;
  }
  return state_;
}

std::uint32_t Stream::events() const {
  std::uint32_t events = 0;
  if (!is_congested()) events |= EPOLLIN;
  if (wants_write()) events |= EPOLLOUT;
  return events;
}

void Stream::read() {
  std::array<char, ByteSocket::max_decrypted_bytes> buffer;
  for (int round = 0; round < max_reads; ++round) {
    const iovec part{.iov_base = buffer.data(), .iov_len = buffer.size()};
    const auto count = socket_.read({&part, 1});
    if (count > 0) {
      has_progressed_ = true;
      frames_.append({buffer.data(), static_cast<std::size_t>(count)});
      if (count < short_read) return;
    } else if (count == 0 || errno == EPIPE) {
      return fail(was_reset_ ? State::reset : State::closed);
    } else if (errno != EINTR) {
      return fail_read_or_write();
    }
  }
}

void Stream::flush() {
  while (sent_ < outgoing_.size() || socket_.has_unsent()) {
    const iovec rest{.iov_base = outgoing_.data() + sent_, .iov_len = outgoing_.size() - sent_};
    const auto count = socket_.write({&rest, 1});
    if (count >= 0) {
      has_progressed_ = has_progressed_ || count > 0;
      sent_ += static_cast<std::size_t>(count);
    } else if (errno == EPIPE || errno == ECONNRESET) {
      // The peer may have sent frames before: read() ends the stream after them.
      was_reset_ = was_reset_ || errno == ECONNRESET;
      break;
    } else if (errno != EINTR) {
      return fail_read_or_write();
    }
  }
  outgoing_.clear();
  sent_ = 0;
}

/// For a call that has failed with errno.
void Stream::fail_read_or_write() {
  switch (errno) {
    case EAGAIN:
      return;
    case ECONNRESET:
      return fail(State::reset);
    case ByteSocket::unauthenticated:
      return fail(State::unauthenticated);
    default:
      return fail(State::network_error);
  }
}

const char* describe_end(Stream::State state) {
  switch (state) {
    case Stream::State::unauthenticated:
      return "it does not know this rank's secret";
    case Stream::State::closed:
      return "it closed the connection";
    case Stream::State::reset:
      return "it reset the connection";
    case Stream::State::damaged:
      return "it sent bytes that no coordinator sends";
    default:
      return "the network failed";
  }
}

void Stream::fail(State state) {
  if (state_ == State::open) state_ = state;
}

}  // namespace tutti::coordinator
