#include "comm/hierarchical/small_all_gather.h"

#include <algorithm>
#include <utility>

namespace tutti::comm {

HierarchicalAllGather::HierarchicalAllGather(std::shared_ptr<NodeGroups> groups, ShmBackend& node, Operation operation,
                                             std::span<const std::byte> input)
    : groups_(std::move(groups)),
      operation_(std::move(operation)),
      node_gather_(groups_->node_subgroup.run([&] { return node.start_small_all_gather(operation_, input); })),
      output_(input.size() * groups_->inter_node_subgroup.parent_ranks.size() *
              groups_->node_subgroup.parent_ranks.size()) {}

// Ranks are numbered node by node, so the concatenated inputs of the nodes are in rank order.
std::span<const std::byte> HierarchicalAllGather::wait() {
  const auto node_input = groups_->node_subgroup.run([&] { return node_gather_->wait(); });
  groups_->run_on_leaders(operation_, output_, [&](Backend& inter_node) {
    const auto exchange = inter_node.start_small_all_gather(operation_, node_input);
    std::ranges::copy(exchange->wait(), output_.begin());
  });
  return output_;
}

}  // namespace tutti::comm
