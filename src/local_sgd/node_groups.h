#pragma once
// The mean of all ranks in two levels: inside each node, then between nodes, with one vector for a node,
// spread over its ranks.
//
// Lin et al. (1808.07217), hierarchical local SGD; the split of a vector over the ranks of a node is that of
// hierarchical all-reduces (Mikami et al., "Massively Distributed SGD", 1811.05233).
#include <ATen/core/TensorBody.h>

#include <optional>

#include "local_sgd/mean_exchange.h"
#include "tutti/comm/communicator.h"

namespace tutti::local_sgd {

class NodeGroups {
 public:
  /// Every rank must call it.
  explicit NodeGroups(const Communicator& all);

  const Communicator& node() const { return node_; }
  /// The ranks with this one's place on all nodes; nullopt where a node is too small to have one.
  const std::optional<Communicator>& inter_node() const { return inter_node_; }
  /// What this rank exchanges with other nodes of a vector of `elements`; empty without inter_node().
  ElementRange inter_node_shard(std::int64_t elements) const;

  /// Inside the node ranks count by header.weight, nodes by the round_weight of their ranks. `inter_node_exchange` is
  /// the exchange of inter_node_shard() over inter_node(), null without. Blocks.
  void mean(const at::Tensor& flat, ExchangeHeader header, bool zero_is_equal, MeanExchange* inter_node_exchange,
            std::int64_t message_bytes, ExchangeCost& cost) const;

 private:
  void inter_node_mean(const at::Tensor& flat, ExchangeHeader header, bool zero_is_equal,
                       MeanExchange* inter_node_exchange, ExchangeCost& cost) const;

  int parts_;  ///< ranks on the smallest node
  Communicator node_;
  std::optional<Communicator> inter_node_;
};

}  // namespace tutti::local_sgd
