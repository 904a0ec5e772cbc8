#include "comm/members/waiting_room.h"

#include <algorithm>

namespace tutti::comm {

WaitingRoom::Time::duration WaitingRoom::longest(std::size_t waiting) {
  return has_place(waiting) ? Time::duration(patience) : Time::duration(patience_in_a_crowd);
}

std::size_t WaitingRoom::turned_away(const std::vector<Time>& since, Time now) {
  const auto at_most = longest(since.size());
  const auto first_to_stay = std::ranges::find_if(since, [&](Time came) { return now - came < at_most; });
  return static_cast<std::size_t>(first_to_stay - since.begin());
}

}  // namespace tutti::comm
