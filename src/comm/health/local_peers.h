#pragma once
// Local peers: the ranks of a node in one PID namespace that share memory. As a rule these are all ranks of the node; a
// rank in its own container has no local peers.
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/health/liveness_table.h"
#include "comm/os/process.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/shm/segment.h"
#include "core/socket.h"

namespace tutti::comm {

/// The value that a rank publishes before the local peers are known.
struct LocalPeerInfo {
  SegmentAddress table{};  ///< the table, if it is the first of its local peers; its process in any case
  std::optional<SocketAddress> liveness_address{};

  std::string to_text() const;
  static LocalPeerInfo from_text(const std::string& text);
};

/// The groups of local peers of a job.
struct LocalPeerMap {
  std::vector<int> leader;               ///< by rank: the first of its local peers
  std::vector<LocalPeerInfo> infos;      ///< by rank
  std::shared_ptr<LivenessTable> table;  ///< of this rank and its local peers

  int count() const;
  std::vector<int> members(int leader_rank) const;
  bool is_alone(int rank) const { return members(leader[static_cast<std::size_t>(rank)]).size() == 1; }
};

/// By rank: the lowest rank with the same node and PID namespace, which may be the rank itself. No I/O.
std::vector<int> find_leaders(const std::vector<int>& node_of_rank, const std::vector<LocalPeerInfo>& infos);

/// Every rank must call it. Throws TimeoutError, PeerError.
LocalPeerMap discover_local_peers(const Rendezvous& rendezvous, int rank, const std::vector<int>& node_of_rank,
                                  const std::optional<SocketAddress>& liveness_address,
                                  std::chrono::milliseconds timeout);

/// The first local peer after `rank` for which `matches` is true; -1 if there is none. No I/O.
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
