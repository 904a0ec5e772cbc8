#pragma once
// The all-gather of a few bytes per rank inside a node, through shared memory.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/backend/operation.h"
#include "comm/shm/node_state.h"
#include "tutti/detail/comm/pending.h"

namespace tutti::comm {

// All-gather number n of a communicator uses slot n % payload_slots of every rank. A rank writes to a slot again only
// when all other ranks have read the contents of `payload_slots` all-gathers ago. The rank itself does not read its
// slot, because its next all-gathers may start before wait().
class ShmAllGather final : public PendingAllGather {
 public:
  ShmAllGather(std::shared_ptr<NodeState> node, Operation operation, std::span<const std::byte> input,
               std::uint32_t number);

  std::span<const std::byte> wait() override;
  bool is_ready() const override;

 private:
  std::shared_ptr<NodeState> node_;
  Operation operation_;
  std::size_t length_;
  std::uint32_t number_;
  std::vector<std::byte> all_;
};

}  // namespace tutti::comm
