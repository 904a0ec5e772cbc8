#pragma once
// Every rank's few bytes to every rank of several nodes.
#include <memory>
#include <vector>

#include "comm/hierarchical/levels.h"
#include "comm/shared/engine.h"

namespace tutti::comm {

// In three steps: inside each node through shared memory; between the first ranks of all nodes, each with its node's
// bytes; and from each first rank to the others of its node, through shared memory again. On M nodes the first ranks
// send M - 1 messages each, or ceil(log2 M) on many nodes, and the others none.
class HierarchicalExchange final : public PendingExchange {
 public:
  HierarchicalExchange(std::shared_ptr<Levels> levels, SharedMemoryEngine& node, Operation operation,
                       std::span<const std::byte> mine);

  std::span<const std::byte> finish() override;

 private:
  std::shared_ptr<Levels> levels_;
  Operation operation_;
  std::unique_ptr<PendingExchange> in_node_;
  std::vector<std::byte> all_;
};

}  // namespace tutti::comm
