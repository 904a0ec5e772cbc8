#include "comm/mail/sorting_room.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/engine/describe.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

// What a rank sent before it went may still be on its way.
constexpr auto last_letters = std::chrono::milliseconds(300);

bool any_order(const Order&) {
  return true;
}

void lost(OrderPtr order, const std::string& why, AllEnded& ended) {
  std::vector<int> culprits;
  if (order->peer != any_source) culprits.push_back(order->peer);
  auto failure =
      std::make_exception_ptr(PeerFailure(order->what + ": " + order->peer_name() + why, std::move(culprits)));
  ended.push_back({std::move(order), std::move(failure)});
}

void late(OrderPtr order, AllEnded& ended) {
  std::vector<int> culprits;
  if (order->peer != any_source) culprits.push_back(order->peer);
  auto failure = std::make_exception_ptr(Timeout(
      order->what + ": nothing came from " + order->peer_name() + " within " + describe_duration(order->timeout),
      std::move(culprits)));
  ended.push_back({std::move(order), std::move(failure)});
}

/// A receive that does not fit ends with an error, and the message is lost.
bool fits(const Letter& letter, const OrderPtr& order, AllEnded& ended) {
  if (letter.bytes == order->memory.size()) return true;
  const Divergence error(order->what + ": rank " + std::to_string(letter.source) + " sent " +
                         std::to_string(letter.bytes) + " bytes, and this rank takes " +
                         std::to_string(order->memory.size()) + ". The message is dropped.");
  ended.push_back({order, std::make_exception_ptr(error)});
  return false;
}

void take(Arrived& message, AllEnded& ended) {
  const auto order = std::exchange(message.order, nullptr);
  if (!message.bytes.empty()) std::memcpy(order->memory.data(), message.bytes.data(), message.bytes.size());
  ended.push_back({order, nullptr, message.source});
}

constexpr std::uint64_t scrap_bytes = 64 * 1024;

bool is_gone(Order& order, Deadline now) {
  if (!order.peer_is_gone()) {
    order.gone_since.reset();
    return false;
  }
  if (!order.gone_since) order.gone_since = now;
  return now - *order.gone_since >= last_letters;
}

}  // namespace

bool Body::next_piece() {
  if (later == 0) return false;
  to = std::span(scrap).first(static_cast<std::size_t>(std::min<std::uint64_t>(later, scrap.size())));
  later -= to.size();
  read = 0;
  return true;
}

void Body::read_into_scrap() {
  later = letter.bytes - read;
  scrap.resize(static_cast<std::size_t>(std::min(later, scrap_bytes)));
  to = {};
  read = 0;
  next_piece();
}

bool SortingRoom::has_room_for(const Letter& letter) {
  if (letter.kind == Letter::Kind::farewell || over_.contains(letter.group)) return true;
  return letter.bytes <= room_ - std::min(room_, unasked_) || holes_[letter.group].has_order(letter.source, letter.tag);
}

void SortingRoom::receive(std::uint64_t group, OrderPtr order, AllEnded& ended) {
  if (const auto over = over_.find(group); over != over_.end()) {
    ended.push_back({std::move(order), over->second});
    return;
  }
  Pigeonhole& hole = holes_[group];
  if (const auto message = hole.take_message(*order)) {
    forget(*message);
    const Letter letter{.tag = message->tag, .source = message->source, .bytes = message->bytes.size()};
    if (!fits(letter, order, ended)) return;
    message->order = std::move(order);
    if (message->complete) take(*message, ended);
  } else if (const char* why = order->peer == any_source ? nullptr : hole.why_left(order->peer)) {
    lost(std::move(order), why, ended);
  } else {
    hole.add(std::move(order));
  }
}

std::optional<Body> SortingRoom::begin(const Letter& letter, int from, AllEnded& ended) {
  sources_[letter.group][letter.source] = from;
  const bool over = over_.contains(letter.group);
  if (letter.kind == Letter::Kind::farewell) {
    if (over) return std::nullopt;
    constexpr const char* why = " has left the group";
    for (auto& order : holes_[letter.group].said_farewell(letter.source, why)) lost(std::move(order), why, ended);
    return std::nullopt;
  }
  Body body{.letter = letter, .order = nullptr, .message = nullptr, .scrap = {}, .to = {}};
  auto order = over ? nullptr : holes_[letter.group].take_order(letter.source, letter.tag);
  if (over || (order && !fits(letter, order, ended))) {
    body.read_into_scrap();
  } else if (order) {
    body.to = order->memory;
    body.order = std::move(order);
  } else {
    body.message = std::make_shared<Arrived>();
    body.message->source = letter.source;
    body.message->tag = letter.tag;
    body.message->bytes.resize(static_cast<std::size_t>(letter.bytes));
    body.to = body.message->bytes;
    unasked_ += body.message->bytes.size();
    holes_[letter.group].add(body.message);
  }
  return body;
}

void SortingRoom::complete(Body& body, AllEnded& ended) {
  if (body.order) {
    ended.push_back({std::exchange(body.order, nullptr), nullptr, body.letter.source});
  } else if (body.message) {
    body.message->complete = true;
    if (body.message->order) take(*body.message, ended);
  }
}

void SortingRoom::lose(int from, Body* body, AllEnded& ended) {
  constexpr const char* why = " is gone (connection closed)";
  if (body != nullptr) {
    auto& order = body->message ? body->message->order : body->order;
    if (order) lost(std::exchange(order, nullptr), why, ended);
    if (body->message && holes_[body->letter.group].remove(body->message)) forget(*body->message);
  }
  for (auto& [group, by_source] : sources_) {
    for (const auto& [source, rank] : by_source) {
      if (rank != from || over_.contains(group)) continue;
      for (auto& order : holes_[group].said_farewell(source, why)) lost(std::move(order), why, ended);
    }
  }
}

bool SortingRoom::end(std::uint64_t group, const std::exception_ptr& failure, AllEnded& ended) {
  if (!over_.emplace(group, failure).second) return false;
  for (auto& order : holes_[group].take_orders(any_order)) ended.push_back({std::move(order), failure});
  for (const auto& message : holes_[group].messages()) forget(*message);
  holes_.erase(group);
  return true;
}

void SortingRoom::end_all(AllEnded& ended) {
  for (auto& [group, hole] : holes_) {
    for (auto& order : hole.take_orders(any_order)) lost(std::move(order), " was not waited for any more", ended);
  }
}

void SortingRoom::look(Deadline now, bool for_the_gone, AllEnded& ended) {
  for (auto& [group, hole] : holes_) {
    for (auto& order : hole.take_orders([&](const Order& one) { return one.deadline <= now; })) {
      late(std::move(order), ended);
    }
    if (!for_the_gone) continue;
    for (auto& order : hole.take_orders([&](Order& one) { return is_gone(one, now); })) {
      lost(std::move(order), " is gone", ended);
    }
  }
}

void SortingRoom::look(Body& body, Deadline now, AllEnded& ended) {
  OrderPtr& taker = body.message ? body.message->order : body.order;
  if (!taker || taker->deadline > now) return;
  if (!body.message) body.read_into_scrap();
  late(std::exchange(taker, nullptr), ended);
}

std::optional<Deadline> SortingRoom::next_deadline() const {
  std::optional<Deadline> next;
  for (const auto& [group, hole] : holes_) {
    for (const auto& order : hole.orders()) next = std::min(next.value_or(order->deadline), order->deadline);
  }
  return next;
}

}  // namespace tutti::comm
