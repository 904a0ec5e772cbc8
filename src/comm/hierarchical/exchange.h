#pragma once
// Every rank's few bytes to every rank of several nodes.
#include <memory>
#include <vector>

#include "comm/hierarchical/sum.h"
#include "comm/shared/engine.h"

namespace tutti::comm {

// In two steps: inside each node through shared memory, then each rank passes its node's bytes on to the ranks with its
// place on other nodes. Among N ranks on M nodes M - 1 messages a rank, or ceil(log2 M) on many nodes, instead of N - 1
// or ceil(log2 N); and none to a rank that it does not exchange slices with.
class HierarchicalExchange final : public PendingExchange {
 public:
  HierarchicalExchange(std::shared_ptr<Levels> levels, SharedMemoryEngine& node, Operation operation,
                       std::span<const std::byte> mine);

  std::span<const std::byte> finish() override;

 private:
  std::shared_ptr<Levels> levels_;
  Operation operation_;
  std::unique_ptr<PendingExchange> in_node_;
  std::unique_ptr<PendingExchange> across_;
};

}  // namespace tutti::comm
