#pragma once
// The heartbeats of a group of local peers at the store, and those of other groups.
#include <cstdint>
#include <optional>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/health/heartbeat_pairs.h"
#include "comm/health/local_peers.h"
#include "comm/health/peer_status.h"
#include "core/socket.h"

namespace tutti::comm {

/// Used by one thread of each local peer. A request blocks until the store answers, and throws what the store throws.
class HeartbeatStore {
 public:
  HeartbeatStore(c10::intrusive_ptr<c10d::Store> store, int rank, const std::vector<int>& node_of_rank,
                 const LocalPeerMap& local_peers);

  /// The groups of local peers that this one watches, by their first ranks.
  const std::vector<int>& peers() const { return peers_; }

  struct Reply {
    std::vector<std::int64_t> heartbeats;    ///< of those watched: another number each time, or exited_heartbeat
    std::vector<int> exited;                 ///< ranks whose processes have exited without an exit announcement
    std::optional<PeerStatusUpdate> update;  ///< all of it, when there is some
  };
  /// Sends a heartbeat, number `own_heartbeats` of these local peers, and reads those of the partners, with one request
  /// for each pair. With `probe_ports` it also probes the processes of ranks without local peers.
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
