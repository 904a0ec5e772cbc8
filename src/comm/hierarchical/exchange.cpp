#include "comm/hierarchical/exchange.h"

#include <utility>

namespace tutti::comm {

HierarchicalExchange::HierarchicalExchange(std::shared_ptr<Levels> levels, SharedMemoryEngine& node,
                                           Operation operation, std::span<const std::byte> mine)
    : levels_(std::move(levels)),
      operation_(std::move(operation)),
      in_node_(levels_->node_ranks.run([&] { return node.start_exchange(operation_, mine); })) {}

// Ranks count node by node, so that the nodes' bytes one behind the other are those of all ranks.
std::span<const std::byte> HierarchicalExchange::finish() {
  const auto of_node = levels_->node_ranks.run([&] { return in_node_->finish(); });
  return levels_->across_ranks.run([&] {
    across_ = levels_->across->start_exchange(operation_, of_node);
    return across_->finish();
  });
}

}  // namespace tutti::comm
