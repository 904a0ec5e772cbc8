#pragma once
// The ranks of a node that see one another's processes and share some memory: a crew. As a rule these are all ranks of
// the node; one in a container of its own is a crew of its own.
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/engine/process.h"
#include "comm/meeting/crew_board.h"
#include "comm/meeting/rendezvous.h"
#include "comm/members/sockets.h"
#include "comm/shared/segment.h"

namespace tutti::comm {

/// What a rank says of itself before crews are known.
struct CrewIntroduction {
  SegmentAddress board{};  ///< that of a crew of which it is the first; its process, in any case
  std::optional<SocketAddress> bell{};

  std::string to_text() const;
  static CrewIntroduction from_text(const std::string& text);
};

/// The crews of a job, as one rank sees them.
struct Crews {
  std::vector<int> first;                       ///< by rank: the first rank of its crew
  std::vector<CrewIntroduction> introductions;  ///< by rank
  std::shared_ptr<CrewBoard> board;             ///< of this rank's crew

  int count() const;
  std::vector<int> members(int first_rank) const;
  bool is_alone(int rank) const { return members(first[static_cast<std::size_t>(rank)]).size() == 1; }
};

/// By rank: the first rank of its node whose process it sees, itself or an earlier one. Pure.
std::vector<int> first_seen(const std::vector<int>& node_of_rank, const std::vector<CrewIntroduction>& introductions);

/// Every rank must call it. Throws Timeout, PeerFailure.
Crews meet_crews(const Rendezvous& rendezvous, int rank, const std::vector<int>& node_of_rank,
                 const std::optional<SocketAddress>& bell, std::chrono::milliseconds timeout);

/// The first rank of the same crew after `rank` for which `counts` is true; -1 where there is none. Pure.
template <typename Counts>
int next_in_crew(int rank, const std::vector<int>& first, const Counts& counts) {
  const auto size = static_cast<int>(first.size());
  for (int step = 1; step < size; ++step) {
    const int other = (rank + step) % size;
    if (first[static_cast<std::size_t>(other)] == first[static_cast<std::size_t>(rank)] && counts(other)) return other;
  }
  return -1;
}

}  // namespace tutti::comm
