#include "sync/sync_policy.h"

#include <algorithm>

namespace tutti {

void AutomaticPolicy::learn(std::span<const WindowLengths> ranks) {
  if (ranks.empty() || ranks.front().last == 0) return;
  const std::int64_t length = ranks.front().last;
  const bool agreed = std::ranges::all_of(
      ranks, [length](const WindowLengths& rank) { return rank.last == length && rank.before == length; });
  if (agreed) expected_ = length;
}

bool synchronizes(const PassContext& context, const AutomaticPolicy& automatic) {
  if (context.triggered) return true;
  if (context.no_sync) return false;
  if (context.in_accumulate) return context.accumulate_syncs || context.sync_each_batch;
  if (context.policy != SyncPolicy::automatic || context.annotated) return true;
  return automatic.synchronizes(context.pass);
}

}  // namespace tutti
