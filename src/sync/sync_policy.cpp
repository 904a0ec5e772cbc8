#include "sync/sync_policy.h"

#include <algorithm>
#include <array>

namespace tutti {

std::string name_of(SyncPolicy policy) {
  constexpr std::array names{"every_pass", "manual", "automatic"};
  return names.at(static_cast<std::size_t>(policy));
}

void AutomaticPolicy::learn(std::span<const WindowLengths> ranks) {
  if (ranks.empty() || ranks.front().last == 0) return;
  const std::int64_t length = ranks.front().last;
  const bool agreed = std::ranges::all_of(
      ranks, [length](const WindowLengths& rank) { return rank.last == length && rank.before == length; });
  if (agreed) expected_ = length;
}

}  // namespace tutti
