#pragma once
// The mean of all ranks in two levels: inside each node, then between nodes. Between nodes, the ranks of a node
// exchange one part of the vector each.
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
  /// The ranks with this local rank on all nodes; nullopt if the smallest node has no such local rank.
  const std::optional<Communicator>& inter_node() const { return inter_node_; }
  /// The part of a vector of `elements` that this rank exchanges between nodes; empty without inter_node().
  ElementRange inter_node_shard(std::int64_t elements) const;

  /// The mean over the ranks of the node, whose weight is header.weight. Blocks. After an error here, ranks of other
  /// nodes throw PeerError in their next exchange with this one.
  WeightShares node_mean(const at::Tensor& flat, const ExchangeHeader& header, std::int64_t message_bytes,
                         ExchangeCost& cost) const;

  /// Inside a node, ranks have the weight header.weight. Between nodes, a node has the sum of its ranks' round_weight.
  /// `inter_node_exchange` exchanges inter_node_shard() over inter_node(); null without inter_node(). Blocks.
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
