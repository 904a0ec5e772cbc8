#include "coordinator/key_values.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace tutti::coordinator {

void KeyValues::set(const std::string& key, std::string value) {
  values_[key] = std::move(value);
  const auto [first, last] = waiting_.equal_range(key);
  std::vector<Waiting> woken;
  for (auto entry = first; entry != last; ++entry) woken.push_back(std::move(entry->second));
  waiting_.erase(first, last);
  for (auto& one : woken) contains(one.keys) ? ready_.push_back(std::move(one)) : wait(std::move(one));
}

std::optional<std::int64_t> KeyValues::add(const std::string& key, std::int64_t increment) {
  std::int64_t value = 0;
  if (const auto found = values_.find(key); found != values_.end()) {
    const auto& text = found->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  }
  if (__builtin_add_overflow(value, increment, &value)) return std::nullopt;
  set(key, std::to_string(value));
  return value;
}

std::string KeyValues::compare_set(const std::string& key, const std::string& expected, std::string desired) {
  const auto found = values_.find(key);
  const std::string value = found == values_.end() ? "" : found->second;
  if (value != expected) return value;
  set(key, desired);
  return desired;
}

const std::string* KeyValues::first_missing(const std::vector<std::string>& keys) const {
  const auto found = std::ranges::find_if(keys, [&](const auto& key) { return !values_.contains(key); });
  return found == keys.end() ? nullptr : &*found;
}

void KeyValues::wait(Waiting waiting) {
  auto missing = *first_missing(waiting.keys);
  waiting_.emplace(std::move(missing), std::move(waiting));
}

std::optional<std::string> KeyValues::forget(const RequestId& request) {
  const auto found = std::ranges::find_if(waiting_, [&](const auto& entry) { return entry.second.request == request; });
  if (found == waiting_.end()) return std::nullopt;
  return std::move(waiting_.extract(found).key());
}

void KeyValues::forget_rank(int rank) {
  std::erase_if(waiting_, [&](const auto& entry) { return entry.second.request.rank == rank; });
}

}  // namespace tutti::coordinator
