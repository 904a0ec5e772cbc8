#include "comm/hierarchical/exchange.h"

#include <algorithm>
#include <utility>

namespace tutti::comm {

HierarchicalExchange::HierarchicalExchange(std::shared_ptr<Levels> levels, SharedMemoryEngine& node,
                                           Operation operation, std::span<const std::byte> mine)
    : levels_(std::move(levels)),
      operation_(std::move(operation)),
      in_node_(levels_->in_node([&] { return node.start_exchange(operation_, mine); })),
      all_(mine.size() * levels_->across_ranks.members.size() * levels_->node_ranks.members.size()) {}

// Ranks count node by node, so that the nodes' bytes one behind the other are those of all ranks.
std::span<const std::byte> HierarchicalExchange::finish() {
  const auto of_node = levels_->in_node([&] { return in_node_->finish(); });
  levels_->between_first_ranks(operation_, all_, [&](Engine& across) {
    const auto exchange = across.start_exchange(operation_, of_node);
    std::ranges::copy(exchange->finish(), all_.begin());
  });
  return all_;
}

}  // namespace tutti::comm
