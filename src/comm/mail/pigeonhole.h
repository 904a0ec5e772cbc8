#pragma once
// The messages of one group that have come, and the receives that wait for some. Pure.
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "comm/mail/order.h"

namespace tutti::comm {

/// A message that nobody has waited for yet.
struct Arrived {
  int source = 0;
  int tag = 0;
  std::vector<std::byte> bytes;
  bool complete = false;
  OrderPtr order;  ///< who takes it once it is complete
};
using ArrivedPtr = std::shared_ptr<Arrived>;

class Pigeonhole {
 public:
  /// The receive that takes a message which begins to come: the first one that fits; null where none does.
  OrderPtr take_order(int source, int tag);
  bool has_order(int source, int tag) const;
  /// The message that `order` takes: the first one that fits; null where none has come.
  ArrivedPtr take_message(const Order& order);

  void add(OrderPtr order) { orders_.push_back(std::move(order)); }
  void add(ArrivedPtr message) { messages_.push_back(std::move(message)); }
  /// A message that will never be complete. Returns false where it has been taken.
  bool remove(const ArrivedPtr& message) { return std::erase(messages_, message) > 0; }
  const std::deque<ArrivedPtr>& messages() const { return messages_; }

  /// `source` sends nothing any more: `why` is what errors say. Orders that wait for it come back.
  std::vector<OrderPtr> said_farewell(int source, const char* why);
  /// Why nothing comes from `source` any more; null where something may.
  const char* why_left(int source) const {
    const auto found = left_.find(source);
    return found == left_.end() ? nullptr : found->second;
  }

  /// Takes off the list all orders for which `over` holds.
  template <typename Over>
  std::vector<OrderPtr> take_orders(const Over& over) {
    std::vector<OrderPtr> taken;
    std::erase_if(orders_, [&](const OrderPtr& order) {
      if (!over(*order)) return false;
      taken.push_back(order);
      return true;
    });
    return taken;
  }
  const std::deque<OrderPtr>& orders() const { return orders_; }

 private:
  std::deque<OrderPtr> orders_;
  std::deque<ArrivedPtr> messages_;
  std::map<int, const char*> left_;
};

}  // namespace tutti::comm
