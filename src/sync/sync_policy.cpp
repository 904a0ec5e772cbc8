#include "sync/sync_policy.h"

#include <algorithm>

namespace tutti {

std::string name_of(SyncPolicy policy) {
  switch (policy) {
    case SyncPolicy::every_pass:
      return "every_pass";
    case SyncPolicy::manual:
      return "manual";
    case SyncPolicy::automatic:
      return "automatic";
  }
  return "?";
}

void AutomaticPolicy::learn(std::span<const WindowLengths> ranks) {
  if (ranks.empty() || ranks.front().last == 0) return;
  const std::int64_t length = ranks.front().last;
  const bool agreed = std::ranges::all_of(
      ranks, [length](const WindowLengths& rank) { return rank.last == length && rank.before == length; });
  if (agreed) expected_ = length;
}

}  // namespace tutti
