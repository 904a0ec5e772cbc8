#include "local_sgd/node_groups.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <vector>

#include "tutti/detail/comm/internal_call.h"

namespace tutti::local_sgd {
namespace {

int smallest_node(const Topology& topology) {
  std::vector<int> ranks(static_cast<std::size_t>(topology.num_nodes), 0);
  for (const int node : topology.node_of_rank) ++ranks[static_cast<std::size_t>(node)];
  return *std::min_element(ranks.begin(), ranks.end());
}

}  // namespace

NodeGroups::NodeGroups(const Communicator& all)
    : parts_(smallest_node(all.topology())),
      node_(*all.split(all.topology().node_rank, all.rank(), comm::internal_call("node"))),
      inter_node_(all.split(all.topology().local_rank < parts_ ? all.topology().local_rank : -1, all.rank(),
                            comm::internal_call("between nodes"))) {}

ElementRange NodeGroups::inter_node_shard(std::int64_t elements) const {
  return inter_node_ ? part_of(elements, node_.rank(), parts_) : ElementRange{};
}

WeightShares NodeGroups::node_mean(const at::Tensor& flat, const ExchangeHeader& header, std::int64_t message_bytes,
                                   ExchangeCost& cost) const {
  try {
    // All weights since the last average in the node may be 0 although the round's weight is positive.
    return MeanExchange(node_, flat.numel(), WireFormat::fp32, message_bytes).run(flat, header, true, cost);
  } catch (...) {
    // The ranks of other nodes wait for this rank, or will. The other ranks of this node throw the same error.
    if (inter_node_) abort_exchanges(*inter_node_);
    throw;
  }
}

void NodeGroups::mean(const at::Tensor& flat, ExchangeHeader header, bool zero_is_equal,
                      MeanExchange* inter_node_exchange, std::int64_t message_bytes, ExchangeCost& cost) const {
  header.weight = node_mean(flat, header, message_bytes, cost).round_weight;
  try {
    inter_node_mean(flat, header, zero_is_equal, inter_node_exchange, cost);
  } catch (...) {
    // The other ranks of the node wait for this rank's part.
    abort_exchanges(node_);
    throw;
  }
}

void NodeGroups::inter_node_mean(const at::Tensor& flat, ExchangeHeader header, bool zero_is_equal,
                                 MeanExchange* inter_node_exchange, ExchangeCost& cost) const {
  if (inter_node_exchange != nullptr) {
    const ElementRange part = inter_node_shard(flat.numel());
    inter_node_exchange->run(flat.slice(0, part.begin, part.begin + part.length), header, zero_is_equal, cost);
  }
  if (node_.size() == 1) return;
  for (int owner = 0; owner < parts_; ++owner) {
    const ElementRange part = part_of(flat.numel(), owner, parts_);
    const at::Tensor result = flat.slice(0, part.begin, part.begin + part.length);
    node_.broadcast(result, owner, comm::internal_call("Local SGD mean")).wait();
    if (owner == node_.rank()) cost.bytes += static_cast<std::int64_t>(result.nbytes()) * (node_.size() - 1);
  }
}

}  // namespace tutti::local_sgd
