#include "comm/mail/pigeonhole.h"

#include <algorithm>

namespace tutti::comm {
namespace {

bool fits(const Order& order, int source, int tag) {
  return order.tag == tag && (order.peer == any_source || order.peer == source);
}

}  // namespace

bool Pigeonhole::has_order(int source, int tag) const {
  return std::ranges::any_of(orders_, [&](const OrderPtr& order) { return fits(*order, source, tag); });
}

OrderPtr Pigeonhole::take_order(int source, int tag) {
  const auto found = std::ranges::find_if(orders_, [&](const OrderPtr& order) { return fits(*order, source, tag); });
  if (found == orders_.end()) return nullptr;
  auto order = *found;
  orders_.erase(found);
  return order;
}

ArrivedPtr Pigeonhole::take_message(const Order& order) {
  const auto found = std::ranges::find_if(
      messages_, [&](const ArrivedPtr& message) { return fits(order, message->source, message->tag); });
  if (found == messages_.end()) return nullptr;
  auto message = *found;
  messages_.erase(found);
  return message;
}

std::vector<OrderPtr> Pigeonhole::said_farewell(int source, const char* why) {
  left_.emplace(source, why);
  return take_orders([&](const Order& order) { return order.peer == source; });
}

}  // namespace tutti::comm
