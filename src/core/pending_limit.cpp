#include "core/pending_limit.h"

#include <algorithm>

namespace tutti {

PendingLimit::Time::duration PendingLimit::timeout_for(std::size_t waiting) {
  return has_capacity(waiting) ? Time::duration(pending_timeout) : Time::duration(pending_timeout_under_load);
}

std::size_t PendingLimit::to_evict(const std::vector<Time>& since, Time now) {
  const auto at_most = timeout_for(since.size());
  const auto first_to_stay = std::ranges::find_if(since, [&](Time connected) { return now - connected < at_most; });
  return static_cast<std::size_t>(first_to_stay - since.begin());
}

}  // namespace tutti
