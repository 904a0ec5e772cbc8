#include "comm/shared/last_call.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "comm/engine/describe.h"

namespace tutti::comm {

void LastCall::set(const Operation& operation) {
  std::array<char, words * sizeof(std::uint64_t)> text{};
  // A zero stays behind each, however long they are.
  const std::size_t what = std::min(operation.what.size(), text.size() / 2);
  const std::size_t name = std::min(operation.name.size(), text.size() - what - 2);
  std::memcpy(text.data(), operation.what.data(), what);
  std::memcpy(text.data() + what + 1, operation.name.data(), name);
  for (std::size_t word = 0; word < words; ++word) {
    std::uint64_t value = 0;
    std::memcpy(&value, text.data() + word * sizeof(value), sizeof(value));
    text_[word].store(value, std::memory_order_relaxed);
  }
  number_.store(operation.number, std::memory_order_relaxed);
  since_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
}

std::string LastCall::describe(Deadline now) const {
  std::array<char, words * sizeof(std::uint64_t) + 1> text{};
  for (std::size_t word = 0; word < words; ++word) {
    const std::uint64_t value = text_[word].load(std::memory_order_relaxed);
    std::memcpy(text.data() + word * sizeof(value), &value, sizeof(value));
  }
  Operation operation;
  operation.what = text.data();
  if (operation.what.empty()) return "none";
  operation.name = text.data() + std::min(operation.what.size() + 1, text.size() - 1);
  operation.number = number_.load(std::memory_order_relaxed);
  const Clock::duration since = now.time_since_epoch() - Clock::duration(since_.load(std::memory_order_relaxed));
  return operation.describe() + ", " +
         describe_duration(std::chrono::duration_cast<std::chrono::seconds>(std::max(since, Clock::duration::zero()))) +
         " ago";
}

}  // namespace tutti::comm
