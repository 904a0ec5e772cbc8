#pragma once
// The ranks of a node that see one another's processes and share some memory: a crew. As a rule these are all ranks of
// the node; one in a container of its own is a crew of its own.
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/health/liveness_table.h"
#include "comm/os/process.h"
#include "comm/os/socket.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/shm/segment.h"

namespace tutti::comm {

/// What a rank says of itself before crews are known.
struct LocalPeerInfo {
  SegmentAddress table{};  ///< that of a crew of which it is the first; its process, in any case
  std::optional<SocketAddress> liveness_address{};

  std::string to_text() const;
  static LocalPeerInfo from_text(const std::string& text);
};

/// The crews of a job, as one rank sees them.
struct LocalPeerMap {
  std::vector<int> leader;               ///< by rank: the first rank of its crew
  std::vector<LocalPeerInfo> infos;      ///< by rank
  std::shared_ptr<LivenessTable> table;  ///< of this rank's crew

  int count() const;
  std::vector<int> members(int leader_rank) const;
  bool is_alone(int rank) const { return members(leader[static_cast<std::size_t>(rank)]).size() == 1; }
};

/// By rank: the first rank of its node whose process it sees, itself or an earlier one. Pure.
std::vector<int> find_leaders(const std::vector<int>& node_of_rank, const std::vector<LocalPeerInfo>& infos);

/// Every rank must call it. Throws TimeoutError, PeerError.
LocalPeerMap discover_local_peers(const Rendezvous& rendezvous, int rank, const std::vector<int>& node_of_rank,
                                  const std::optional<SocketAddress>& liveness_address,
                                  std::chrono::milliseconds timeout);

/// The first rank of the same crew after `rank` for which `matches` is true; -1 where there is none. Pure.
template <typename Matches>
int next_local_peer(int rank, const std::vector<int>& leader, const Matches& matches) {
  const auto size = static_cast<int>(leader.size());
  for (int step = 1; step < size; ++step) {
    const int other = (rank + step) % size;
    if (leader[static_cast<std::size_t>(other)] == leader[static_cast<std::size_t>(rank)] && matches(other))
      return other;
  }
  return -1;
}

}  // namespace tutti::comm
