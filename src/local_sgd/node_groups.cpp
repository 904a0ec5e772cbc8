#include "local_sgd/node_groups.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <vector>

#include "tutti/detail/comm/inner_call.h"

namespace tutti::local_sgd {
namespace {

int smallest_node(const NodeLayout& layout) {
  std::vector<int> ranks(static_cast<std::size_t>(layout.num_nodes), 0);
  for (const int node : layout.node_of_rank) ++ranks[static_cast<std::size_t>(node)];
  return *std::min_element(ranks.begin(), ranks.end());
}

}  // namespace

NodeGroups::NodeGroups(const Communicator& all)
    : parts_(smallest_node(all.layout())),
      node_(*all.split(all.layout().node_rank, all.rank(), comm::inner_call("node"))),
      across_(all.split(all.layout().local_rank < parts_ ? all.layout().local_rank : -1, all.rank(),
                        comm::inner_call("between nodes"))) {}

ElementRange NodeGroups::own_part(std::int64_t elements) const {
  return across_ ? part_of(elements, node_.rank(), parts_) : ElementRange{};
}

void NodeGroups::mean(const at::Tensor& flat, ExchangeHeader header, bool zero_is_equal, MeanExchange* between,
                      std::int64_t message_bytes, ExchangeCost& cost) const {
  // Steps since the node met last may all weigh nothing while the round weighs something.
  const WeightShares shares =
      MeanExchange(node_, flat.numel(), WireFormat::fp32, message_bytes).run(flat, header, true, cost);
  header.weight = shares.round_weight;
  try {
    mean_between(flat, header, zero_is_equal, between, cost);
  } catch (...) {
    // The node's other ranks wait for this one's part.
    abandon(node_);
    throw;
  }
}

void NodeGroups::mean_between(const at::Tensor& flat, ExchangeHeader header, bool zero_is_equal, MeanExchange* between,
                              ExchangeCost& cost) const {
  if (between != nullptr) {
    const ElementRange part = own_part(flat.numel());
    between->run(flat.slice(0, part.begin, part.begin + part.length), header, zero_is_equal, cost);
  }
  if (node_.size() == 1) return;
  for (int owner = 0; owner < parts_; ++owner) {
    const ElementRange part = part_of(flat.numel(), owner, parts_);
    const at::Tensor result = flat.slice(0, part.begin, part.begin + part.length);
    node_.broadcast(result, owner, comm::inner_call("local update")).wait();
    if (owner == node_.rank()) cost.bytes += static_cast<std::int64_t>(result.nbytes()) * (node_.size() - 1);
  }
}

}  // namespace tutti::local_sgd
