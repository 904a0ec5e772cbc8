#pragma once
// A crew's signs of life at the store, and what is seen there of others.
#include <cstdint>
#include <optional>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/health/heartbeat_pairs.h"
#include "comm/health/local_peers.h"
#include "comm/health/peer_status.h"
#include "comm/os/socket.h"

namespace tutti::comm {

/// For one thread of any rank of the crew. What it asks of the store takes as long as that takes to answer, and throws
/// what the store throws.
class HeartbeatStore {
 public:
  HeartbeatStore(c10::intrusive_ptr<c10d::Store> store, int rank, const std::vector<int>& node_of_rank,
                 const LocalPeerMap& local_peers);

  /// The crews that this one watches, by their first ranks.
  const std::vector<int>& peers() const { return peers_; }

  struct Reply {
    std::vector<std::int64_t> heartbeats;    ///< of those watched: another number each time, or exited_heartbeat
    std::vector<int> exited;                 ///< ranks whose processes are found to have ended without a good-bye
    std::optional<PeerStatusUpdate> update;  ///< all of it, when there is some
  };
  /// Gives a sign of life, the crew's `own_heartbeats`th, and looks for those of others. One request for each pair. If
  /// it `probe_ports`, it also looks whether the processes of ranks that are alone in their crews are there.
  Reply send_heartbeat(std::uint32_t own_heartbeats, bool probe_ports);

  /// For all ranks.
  void publish(const PeerStatusUpdate& update);
  void announce_exit();

 private:
  struct Peer {
    HeartbeatPair pair;
    std::optional<SocketAddress> liveness_address;  // of a rank that is alone and was heard to be there
    std::int64_t updates = 0;
    int refusals = 0;
  };

  c10::intrusive_ptr<c10d::Store> store_;
  int size_;
  std::vector<HeartbeatPair> all_pairs_;
  std::vector<Peer> pairs_;
  std::vector<int> peers_;
};

}  // namespace tutti::comm
