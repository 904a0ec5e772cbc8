#include "comm/shared/last_call.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "comm/engine/describe.h"

namespace tutti::comm {

void LastCall::set(const Operation& operation) {
  Text text{};
  // A zero stays behind each, however long they are.
  const std::size_t what = std::min(operation.what.size(), file_begins / 2);
  const std::size_t name = std::min(operation.name.size(), file_begins - what - 2);
  const std::size_t file = std::min(std::strlen(operation.where.file), text.size() - file_begins - 1);
  std::memcpy(text.data(), operation.what.data(), what);
  std::memcpy(text.data() + what + 1, operation.name.data(), name);
  std::memcpy(text.data() + file_begins, operation.where.file, file);
  for (std::size_t word = 0; word < words; ++word) {
    std::uint64_t value = 0;
    std::memcpy(&value, text.data() + word * sizeof(value), sizeof(value));
    text_[word].store(value, std::memory_order_relaxed);
  }
  line_.store(operation.where.line, std::memory_order_relaxed);
  number_.store(operation.number, std::memory_order_relaxed);
  since_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
}

std::string LastCall::describe(Deadline now) const {
  Text text{};
  for (std::size_t word = 0; word < words; ++word) {
    const std::uint64_t value = text_[word].load(std::memory_order_relaxed);
    std::memcpy(text.data() + word * sizeof(value), &value, sizeof(value));
  }
  Operation operation;
  operation.what = text.data();
  if (operation.what.empty()) return "none";
  operation.name = text.data() + std::min(operation.what.size() + 1, file_begins - 1);
  operation.where = {.file = text.data() + file_begins, .line = line_.load(std::memory_order_relaxed)};
  operation.number = number_.load(std::memory_order_relaxed);
  const Clock::duration since = now.time_since_epoch() - Clock::duration(since_.load(std::memory_order_relaxed));
  return operation.describe_with_place() + ", " +
         describe_duration(std::chrono::duration_cast<std::chrono::seconds>(std::max(since, Clock::duration::zero()))) +
         " ago";
}

}  // namespace tutti::comm
