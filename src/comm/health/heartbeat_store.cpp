#include "comm/health/heartbeat_store.h"

#include <utility>

#include "comm/health/liveness_port.h"
#include "comm/health/liveness_tracker.h"
#include "comm/rendezvous/store_bytes.h"

namespace tutti::comm {
namespace {

constexpr const char* status_key = "peer_status";
// An exit announcement may still be in flight when the process has exited.
constexpr int refusals_until_exited = 2;

// A refusal says something of those only that could be reached before: a firewall may refuse too.
std::optional<SocketAddress> reachable_liveness_address(const LocalPeerMap& local_peers, int leader) {
  const auto& liveness_address = local_peers.infos[static_cast<std::size_t>(leader)].liveness_address;
  return liveness_address && local_peers.is_alone(leader) && probe(*liveness_address) == Probe::connected
             ? liveness_address
             : std::nullopt;
}

}  // namespace

HeartbeatStore::HeartbeatStore(c10::intrusive_ptr<c10d::Store> store, int rank, const std::vector<int>& node_of_rank,
                               const LocalPeerMap& local_peers)
    : store_(std::move(store)),
      size_(static_cast<int>(node_of_rank.size())),
      all_pairs_(pairs_between_leaders(node_of_rank, local_peers.leader)) {
  const int own_leader = local_peers.leader[static_cast<std::size_t>(rank)];
  for (const HeartbeatPair& pair : all_pairs_) {
    if (!pair.contains(own_leader)) continue;
    const int partner = pair.partner_of(own_leader);
    pairs_.push_back({.pair = pair, .liveness_address = reachable_liveness_address(local_peers, partner)});
    peers_.push_back(partner);
  }
}

HeartbeatStore::Reply HeartbeatStore::send_heartbeat(std::uint32_t own_heartbeats, bool probe_ports) {
  Reply reply;
  bool has_update = false;
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    Peer& peer = pairs_[i];
    const PackedCounter number(store_->add(peer.pair.key(), PackedCounter::heartbeat));
    reply.heartbeats.push_back(number.has_exited() ? exited_heartbeat : number.heartbeats() - own_heartbeats);
    if (std::exchange(peer.updates, number.updates()) != number.updates()) has_update = true;
    if (!probe_ports || !peer.liveness_address || number.has_exited()) continue;
    peer.refusals = probe(*peer.liveness_address) == Probe::refused ? peer.refusals + 1 : 0;
    if (peer.refusals == refusals_until_exited) reply.exited.push_back(peers_[i]);
  }
  if (has_update) reply.update = PeerStatusUpdate::decode(as_text(store_->get(status_key)), size_);
  return reply;
}

void HeartbeatStore::publish(const PeerStatusUpdate& update) {
  store_->append(status_key, as_bytes(update.encode()));
  for (const HeartbeatPair& pair : all_pairs_) store_->add(pair.key(), PackedCounter::update);
}

void HeartbeatStore::announce_exit() {
  for (const Peer& peer : pairs_) store_->add(peer.pair.key(), PackedCounter::exited);
}

}  // namespace tutti::comm
