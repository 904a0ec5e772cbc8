#include "comm/mail/outgoing.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <system_error>
#include <utility>

#include "comm/engine/describe.h"
#include "comm/members/knock.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

std::exception_ptr gone(const Order& order) {
  return std::make_exception_ptr(
      PeerFailure(order.what + ": " + order.peer_name() + " is gone (connection closed)", {order.peer}));
}

std::exception_ptr not_of_the_job(const Order& order) {
  return std::make_exception_ptr(PeerFailure(
      order.what + ": " + order.peer_name() + " and this rank do not share the job's secret.", {order.peer}));
}

std::exception_ptr not_sent(const Order& order) {
  return std::make_exception_ptr(Error(order.what + ": it was not sent, since an exception ended the communicator."));
}

std::exception_ptr too_late(const Order& order) {
  return std::make_exception_ptr(
      Timeout(order.what + ": " + order.peer_name() + " did not take it within " + describe_duration(order.timeout),
              {order.peer}));
}

}  // namespace

std::string PostalAddress::to_text() const {
  std::ostringstream text;
  text << socket.host << ' ' << socket.port << ' ' << nonce[0] << ' ' << nonce[1];
  return text.str();
}

PostalAddress PostalAddress::from_text(const std::string& text) {
  std::istringstream words(text);
  PostalAddress address;
  words >> address.socket.host >> address.socket.port >> address.nonce[0] >> address.nonce[1];
  return address;
}

void Outgoing::add(const Letter& letter, OrderPtr order) {
  parcels_.push_back({letter, std::move(order)});
}

bool Outgoing::idle() const {
  return std::ranges::none_of(parcels_, [](const Parcel& parcel) { return parcel.order != nullptr; });
}

void Outgoing::end(std::uint64_t group, const std::exception_ptr& failure, AllEnded& ended) {
  std::erase_if(parcels_, [&](Parcel& parcel) {
    if (!parcel.order || parcel.letter.group != group || parcel.sent > 0) return false;
    ended.push_back({std::move(parcel.order), failure});
    return true;
  });
}

void Outgoing::connect(const PostalAddress& address, AllEnded& ended) {
  try {
    socket_ = begin_to_connect(address.socket);
    connecting_ = true;
    if (secret_) handshake_.emplace(Handshake::Side::calls, secret_, mail_subject);
    greeting_ = {.nonce = address.nonce, .rank = own_rank_};
  } catch (const std::system_error&) {
    lose(ended);
  }
}

std::optional<pollfd> Outgoing::wish() const {
  if (!socket_.is_open()) return std::nullopt;
  const bool writes = connecting_ || (handshake_ ? !handshake_->to_send().empty() : !parcels_.empty());
  // Nothing ever comes from there but its end.
  return pollfd{.fd = socket_.get(), .events = static_cast<short>(POLLIN | (writes ? POLLOUT : 0)), .revents = 0};
}

void Outgoing::work(short found, AllEnded& ended) {
  try {
    if (connecting_) {
      finish_connecting(socket_);
      connecting_ = false;
    }
    if (handshake_ && !prove(ended)) return;
    std::array<std::byte, 64> unasked;
    if ((found & (POLLIN | POLLHUP | POLLERR)) != 0 && !read_some(socket_, unasked)) {
      lose(ended);
      return;
    }
    write(ended);
  } catch (const std::system_error&) {
    lose(ended);
  }
}

bool Outgoing::prove(AllEnded& ended) {
  const auto outcome = go_on(*handshake_, socket_);
  if (outcome == Handshake::Outcome::open) return false;
  handshake_.reset();
  if (outcome != Handshake::Outcome::proven) give_up(ended, not_of_the_job);
  return outcome == Handshake::Outcome::proven;
}

void Outgoing::write(AllEnded& ended) {
  const auto greeting = std::as_bytes(std::span(&greeting_, 1));
  while (greeted_ < greeting.size()) {
    const auto count = write_some(socket_, greeting.subspan(greeted_));
    if (count == 0) return;
    greeted_ += count;
  }
  while (!parcels_.empty()) {
    Parcel& parcel = parcels_.front();
    const auto letter = std::as_bytes(std::span(&parcel.letter, 1));
    const auto body = parcel.order ? std::span<const std::byte>(parcel.order->memory) : std::span<const std::byte>();
    while (parcel.sent < letter.size() + body.size()) {
      const auto left =
          parcel.sent < letter.size() ? letter.subspan(parcel.sent) : body.subspan(parcel.sent - letter.size());
      const auto count = write_some(socket_, left);
      if (count == 0) return;
      parcel.sent += count;
    }
    if (parcel.order) ended.push_back({std::move(parcel.order), nullptr});
    parcels_.pop_front();
  }
}

void Outgoing::look(Deadline now, bool look_for_the_gone, AllEnded& ended) {
  bool half_sent = false;
  bool nobody = false;
  std::erase_if(parcels_, [&](Parcel& parcel) {
    if (!parcel.order) return false;
    const bool late = parcel.order->deadline <= now;
    if (!late && look_for_the_gone && !socket_.is_open() && !nobody) nobody = parcel.order->peer_is_gone();
    if (broken_ || nobody) {
      ended.push_back({parcel.order, gone(*parcel.order)});
      return true;
    }
    if (!late) return false;
    half_sent = half_sent || parcel.sent > 0;
    ended.push_back({parcel.order, too_late(*parcel.order)});
    return true;
  });
  // What follows half a message would be read as its other half.
  if (half_sent) lose(ended);
}

std::optional<Deadline> Outgoing::next_deadline() const {
  std::optional<Deadline> first;
  for (const Parcel& parcel : parcels_) {
    if (parcel.order) first = std::min(first.value_or(parcel.order->deadline), parcel.order->deadline);
  }
  return first;
}

void Outgoing::give_up(AllEnded& ended, Why why) {
  broken_ = true;
  socket_.reset();
  for (Parcel& parcel : parcels_) {
    if (parcel.order) ended.push_back({parcel.order, why(*parcel.order)});
  }
  parcels_.clear();
}

void Outgoing::lose(AllEnded& ended) {
  give_up(ended, gone);
}

void Outgoing::let_go(AllEnded& ended) {
  give_up(ended, not_sent);
}

}  // namespace tutti::comm
