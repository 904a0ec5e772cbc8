#pragma once
// Every rank tells all others a few bytes, over messages: to each of them in small groups, in rounds in larger ones.
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "comm/algorithms/bruck_schedule.h"
#include "comm/backend/operation.h"
#include "comm/transport/transport.h"
#include "tutti/detail/comm/pending.h"

namespace tutti::comm {

/// Ranks up to which each message goes straight to its rank: nobody then waits for what a third one passes on.
inline constexpr int max_direct_ranks = 8;

/// All at once, and complete when all is there.
class DirectAllGather final : public PendingAllGather {
 public:
  DirectAllGather(Transport& transport, Operation operation, std::span<const std::byte> input);
  std::span<const std::byte> wait() override;

 private:
  Operation operation_;
  Buffer output_;
  Transfers transfers_;
};

/// The first round begins at once, the others in wait().
class BruckAllGather final : public PendingAllGather {
 public:
  BruckAllGather(std::shared_ptr<Transport> transport, Operation operation, std::span<const std::byte> input);
  std::span<const std::byte> wait() override;

 private:
  Buffer part(std::size_t first, std::size_t count) const {
    return output_.part(first * block_bytes_, count * block_bytes_);
  }
  void send(const BruckStep& step);

  std::shared_ptr<Transport> transport_;
  Operation operation_;
  std::size_t block_bytes_;  // of a block
  std::vector<BruckStep> steps_;
  Buffer output_;  // from this rank's own on
  Transfers receives_;
  Transfers sends_;
};

}  // namespace tutti::comm
