#pragma once
// The two groups of each rank in a hierarchical backend: the ranks of its node, which share memory, and the ranks with
// the same local rank on all nodes, which exchange messages.
//
// The ranks with one local rank own the same shards (see HierarchicalAllReduce). All other messages between nodes are
// exchanged by the node leaders. Other ranks connect to another node only when they own a shard, so that a large
// job has few connections.
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

/// The all-reduce of a shard between nodes. It outlives its HierarchicalAllReduce if an exception ends that one early.
struct InterNodeSum {
  std::unique_ptr<PendingAllReduce> pending;
  double scale = 1;
  bool reduced = false;
};

/// Used by the communicator's queue thread only.
struct NodeGroups {
  std::shared_ptr<NodeState> node;
  Subgroup node_subgroup;
  std::shared_ptr<Backend> inter_node;  ///< the ranks with this local rank on all nodes
  Subgroup inter_node_subgroup;
  std::unique_ptr<NodeBroadcast> node_broadcast;
  /// The sums in flight, oldest first.
  std::deque<std::shared_ptr<InterNodeSum>> pending_sums;

  bool is_node_leader() const { return node->rank() == 0; }

  /// Runs `call` on each node leader, with the backend that connects the leaders. Then broadcasts `result`, which
  /// `call` has filled, to the ranks of the node. Throws TransferError.
  template <typename Call>
  void run_on_leaders(const Operation& operation, std::span<std::byte> result, const Call& call) {
    if (is_node_leader()) inter_node_subgroup.run([&] { call(*inter_node); });
    node_subgroup.run([&] { node_broadcast->run(result, {operation}); });
  }

  /// Reduces the oldest pending sum.
  void reduce_oldest() {
    InterNodeSum& oldest = *pending_sums.front();
    inter_node_subgroup.run([&] { oldest.pending->finish_reduce_scatter(oldest.scale); });
    oldest.reduced = true;
    pending_sums.pop_front();
  }
};

}  // namespace tutti::comm
