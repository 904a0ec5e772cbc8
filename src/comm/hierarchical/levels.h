#pragma once
// The ranks of a node, which share memory, and the ranks with one place on all nodes, which send one another messages.
//
// All ranks of a place have slices of the same sums (see HierarchicalSum). Everything else that nodes tell one another
// goes between their first ranks. Of a large job other ranks connect to no node until they own a slice: connections
// have threads.
#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <span>

#include "comm/engine/engine.h"
#include "comm/engine/operation.h"
#include "comm/engine/rank_group.h"
#include "comm/shared/hand_out.h"
#include "comm/shared/node.h"

namespace tutti::comm {

/// A slice's sum between nodes. It outlives the sum that it belongs to where an exception ends that one early.
struct SumAcross {
  at::Tensor slice;
  std::unique_ptr<PendingSum> pending;
  double scale = 1;
  bool reduced = false;
};

/// Of the channel's thread.
struct Levels {
  std::shared_ptr<Engine> messages;  ///< all ranks
  std::shared_ptr<SharedNode> node;
  RankGroup node_ranks;
  std::shared_ptr<Engine> across;  ///< the ranks with this one's place on all nodes
  RankGroup across_ranks;
  std::unique_ptr<SharedHandOut> hand_out;
  /// Those under way, in order.
  std::deque<std::shared_ptr<SumAcross>> between;

  bool is_first_of_node() const { return node->rank() == 0; }

  /// Runs `step` on what the ranks of this node share. Throws TransferError.
  template <typename Step>
  auto in_node(const Step& step) const {
    try {
      return node_ranks.run(step);
    } catch (const TransferError&) {
      // A rank that gave up because of another machine may have left no word of it: the store may be on that one.
      messages->throw_if_silent();
      throw;
    }
  }

  /// Runs `step`, on the first rank of each node, with the engine that connects these. Then what it has left in
  /// `result` is everyone's. Throws TransferError.
  template <typename Step>
  void between_first_ranks(const Operation& operation, std::span<std::byte> result, const Step& step) {
    if (is_first_of_node()) across_ranks.run([&] { step(*across); });
    in_node([&] { hand_out->run(result, {operation}); });
  }

  /// Connects this rank to those in its place on other nodes; these must call it too. Throws PeerFailure, Timeout.
  void connect_across() {
    across_ranks.run([&] { across->connect(); });
  }

  /// Adds up the oldest sum.
  void reduce_oldest();
};

}  // namespace tutti::comm
