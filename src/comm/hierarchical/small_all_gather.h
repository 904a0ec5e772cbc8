#pragma once
// Every rank's few bytes to every rank of several nodes.
#include <memory>
#include <vector>

#include "comm/hierarchical/node_groups.h"
#include "comm/shm/backend.h"

namespace tutti::comm {

// In three steps: inside each node through shared memory; between the first ranks of all nodes, each with its node's
// bytes; and from each first rank to the others of its node, through shared memory again. On M nodes the first ranks
// send M - 1 messages each, or ceil(log2 M) on many nodes, and the others none.
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
