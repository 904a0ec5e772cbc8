#pragma once
// The ranks of a node, which share memory, and the ranks with one place on all nodes, which send one another messages.
//
// All ranks of a place have slices of the same sums (see HierarchicalAllReduce). Everything else that nodes tell one
// another goes between their first ranks. Of a large job other ranks connect to no node until they own a slice:
// connections have threads.
#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <span>

#include "comm/backend/backend.h"
#include "comm/backend/operation.h"
#include "comm/backend/subgroup.h"
#include "comm/shm/node_broadcast.h"
#include "comm/shm/node_state.h"

namespace tutti::comm {

/// A slice's sum between nodes. It outlives the sum that it belongs to where an exception ends that one early.
struct InterNodeSum {
  at::Tensor shard;
  std::unique_ptr<PendingAllReduce> pending;
  double scale = 1;
  bool reduced = false;
};

/// Of the channel's thread.
struct NodeGroups {
  std::shared_ptr<Backend> p2p_backend;  ///< all ranks
  std::shared_ptr<NodeState> node;
  Subgroup node_subgroup;
  std::shared_ptr<Backend> inter_node;  ///< the ranks with this one's place on all nodes
  Subgroup inter_node_subgroup;
  std::unique_ptr<NodeBroadcast> node_broadcast;
  /// Those under way, in order.
  std::deque<std::shared_ptr<InterNodeSum>> pending_sums;

  bool is_node_leader() const { return node->rank() == 0; }

  /// Runs `call` on what the ranks of this node share. Throws TransferError.
  template <typename Call>
  auto run_in_node(const Call& call) const {
    try {
      return node_subgroup.run(call);
    } catch (const TransferError&) {
      // A rank that gave up because of another machine may have left no word of it: the store may be on that one.
      p2p_backend->throw_if_heartbeat_lost();
      throw;
    }
  }

  /// Runs `call`, on the first rank of each node, with the backend that connects these. Then what it has left in
  /// `result` is everyone's. Throws TransferError.
  template <typename Call>
  void run_on_leaders(const Operation& operation, std::span<std::byte> result, const Call& call) {
    if (is_node_leader()) inter_node_subgroup.run([&] { call(*inter_node); });
    run_in_node([&] { node_broadcast->run(result, {operation}); });
  }

  /// Connects this rank to those in its place on other nodes; these must call it too. Throws PeerError, TimeoutError.
  void connect_inter_node() {
    inter_node_subgroup.run([&] { inter_node->connect(); });
  }

  /// Adds up the oldest sum.
  void reduce_oldest();
};

}  // namespace tutti::comm
