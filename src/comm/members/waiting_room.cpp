#include "comm/members/waiting_room.h"

#include <algorithm>

namespace tutti::comm {

std::size_t WaitingRoom::turned_away(const std::vector<Time>& since, Time now) {
  const bool crowded = !has_place(since.size());
  const auto longest = crowded ? std::chrono::duration_cast<Time::duration>(patience_in_a_crowd)
                               : std::chrono::duration_cast<Time::duration>(patience);
  const auto first_to_stay = std::ranges::find_if(since, [&](Time came) { return now - came < longest; });
  return static_cast<std::size_t>(first_to_stay - since.begin());
}

}  // namespace tutti::comm
