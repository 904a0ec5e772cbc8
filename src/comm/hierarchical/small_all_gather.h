#pragma once
// The all-gather of a few bytes per rank over several nodes.
#include <memory>
#include <vector>

#include "comm/hierarchical/node_groups.h"
#include "comm/shm/backend.h"

namespace tutti::comm {

// Three steps: an all-gather inside each node through shared memory, an all-gather of the nodes' bytes between the node
// leaders, and a broadcast inside each node through shared memory. On M nodes a node leader sends M - 1 messages, or
// ceil(log2 M) if there are many nodes. Other ranks send no messages.
class HierarchicalAllGather final : public PendingAllGather {
 public:
  HierarchicalAllGather(std::shared_ptr<NodeGroups> groups, ShmBackend& node, Operation operation,
                        std::span<const std::byte> input);

  std::span<const std::byte> wait() override;

 private:
  std::shared_ptr<NodeGroups> groups_;
  Operation operation_;
  std::unique_ptr<PendingAllGather> node_gather_;
  std::vector<std::byte> output_;
};

}  // namespace tutti::comm
