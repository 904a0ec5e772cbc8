#include "comm/shm/last_operation.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "comm/backend/describe.h"

namespace tutti::comm {

void LastOperation::set(const Operation& operation) {
  Text text{};
  // Each text is truncated so that a zero byte follows it.
  const std::size_t what = std::min(operation.op_name.size(), file_offset / 2);
  const std::size_t name = std::min(operation.name.size(), file_offset - what - 2);
  const std::size_t file = std::min(std::strlen(operation.call_site.file), text.size() - file_offset - 1);
  std::memcpy(text.data(), operation.op_name.data(), what);
  std::memcpy(text.data() + what + 1, operation.name.data(), name);
  std::memcpy(text.data() + file_offset, operation.call_site.file, file);
  for (std::size_t word = 0; word < word_count; ++word) {
    std::uint64_t value = 0;
    std::memcpy(&value, text.data() + word * sizeof(value), sizeof(value));
    text_[word].store(value, std::memory_order_relaxed);
  }
  line_.store(operation.call_site.line, std::memory_order_relaxed);
  number_.store(operation.number, std::memory_order_relaxed);
  started_at_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
}

std::string LastOperation::describe(Deadline now) const {
  Text text{};
  for (std::size_t word = 0; word < word_count; ++word) {
    const std::uint64_t value = text_[word].load(std::memory_order_relaxed);
    std::memcpy(text.data() + word * sizeof(value), &value, sizeof(value));
  }
  Operation operation;
  operation.op_name = text.data();
  if (operation.op_name.empty()) return "none";
  operation.name = text.data() + std::min(operation.op_name.size() + 1, file_offset - 1);
  operation.call_site = {.file = text.data() + file_offset, .line = line_.load(std::memory_order_relaxed)};
  operation.number = number_.load(std::memory_order_relaxed);
  const Clock::duration since = now.time_since_epoch() - Clock::duration(started_at_.load(std::memory_order_relaxed));
  return operation.describe_with_call_site() + ", " +
         describe_duration(std::chrono::duration_cast<std::chrono::seconds>(std::max(since, Clock::duration::zero()))) +
         " ago";
}

}  // namespace tutti::comm
