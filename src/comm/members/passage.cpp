#include "comm/members/passage.h"

#include <span>
#include <system_error>
#include <utility>

#include "comm/members/knock.h"

namespace tutti::comm {
namespace {

// A gate in a crowd may turn a rank away too: that one calls again.
constexpr auto between_calls_of_a_passage = std::chrono::milliseconds(50);
constexpr auto calls_for = std::chrono::seconds(10);

}  // namespace

void Flow::move(const FileDescriptor& from, const FileDescriptor& to) {
  for (;;) {
    while (wants_to_write()) {
      const auto count = write_some(to, std::span(buffer_).subspan(sent_, size_ - sent_));
      if (count == 0) return;
      sent_ += count;
    }
    sent_ = size_ = 0;
    if (ended_) return;
    const auto count = read_some(from, buffer_);
    ended_ = !count.has_value();
    if (count.value_or(0) == 0) return;
    size_ = *count;
  }
}

Passage::Passage(FileDescriptor near, SocketAddress onward, Proof proof, JobSecretPtr secret, std::string subject,
                 Time since)
    : near_(std::move(near)),
      onward_(std::move(onward)),
      proof_(proof),
      secret_(std::move(secret)),
      subject_(std::move(subject)),
      since_(since) {
  send_at_once(near_);
  if (proof_ == Proof::asked) {
    handshake_.emplace(Handshake::Side::is_called, secret_, subject_);
  } else {
    next_try_ = since;
  }
}

void Passage::wish(std::vector<pollfd>& wishes) const {
  const auto add = [&](const FileDescriptor& socket, bool reads, bool writes) {
    const auto events = static_cast<short>((reads ? POLLIN : 0) | (writes ? POLLOUT : 0));
    if (socket.is_open() && events != 0) wishes.push_back({.fd = socket.get(), .events = events, .revents = 0});
  };
  if (connecting_) return add(far_, false, true);
  if (!proven_) {
    const bool writes = handshake_ && !handshake_->to_send().empty();
    return add(proof_ == Proof::asked ? near_ : far_, !writes, writes);
  }
  add(near_, inwards_.wants_to_read(), outwards_.wants_to_write());
  add(far_, outwards_.wants_to_read(), inwards_.wants_to_write());
}

bool Passage::work(Time now) {
  try {
    if (next_try_ && now >= *next_try_) call();
    if (connecting_) {
      pollfd ready{.fd = far_.get(), .events = POLLOUT, .revents = 0};
      if (::poll(&ready, 1, 0) <= 0) return true;
      finish_connecting(far_);
      connecting_ = false;
      if (!proven_) handshake_.emplace(Handshake::Side::calls, secret_, subject_);
    }
    if (!proven_ && !prove()) return false;
    return !proven_ || connecting_ || pass();
  } catch (const std::system_error&) {
    return call_again(now);
  }
}

/// Returns false where it is over without a proof.
bool Passage::prove() {
  if (!handshake_) return true;  // not connected yet
  const auto outcome = go_on(*handshake_, proof_ == Proof::asked ? near_ : far_);
  if (outcome == Handshake::Outcome::open) return true;
  handshake_.reset();
  failed_ = outcome != Handshake::Outcome::proven;
  if (failed_) return false;
  proven_ = true;
  if (proof_ == Proof::asked) call();
  return true;
}

void Passage::call() {
  next_try_.reset();
  far_ = begin_to_connect(onward_);
  connecting_ = true;
}

/// After a connection has broken. Returns false where this was the end.
bool Passage::call_again(Time now) {
  if (proven_ || proof_ == Proof::asked || now - since_ >= calls_for) return false;
  handshake_.reset();
  connecting_ = false;
  far_.reset();
  next_try_ = now + between_calls_of_a_passage;
  return true;
}

bool Passage::pass() {
  inwards_.move(near_, far_);
  outwards_.move(far_, near_);
  // Nobody on either side ends one direction only.
  return !inwards_.is_over() && !outwards_.is_over();
}

}  // namespace tutti::comm
