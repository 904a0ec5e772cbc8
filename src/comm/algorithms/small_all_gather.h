#pragma once
// The all-gather of a few bytes per rank over point-to-point messages: direct in small groups, Bruck's algorithm in
// larger ones.
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "comm/algorithms/bruck_schedule.h"
#include "comm/backend/operation.h"
#include "comm/transport/transport.h"
#include "tutti/detail/comm/pending.h"

namespace tutti::comm {

/// The largest group in which every rank sends directly to every other rank. No rank then waits for a third rank to
/// forward a message.
inline constexpr int max_direct_ranks = 8;

/// Posts all sends and receives in the constructor.
class DirectAllGather final : public PendingAllGather {
 public:
  DirectAllGather(Transport& transport, Operation operation, std::span<const std::byte> input);
  std::span<const std::byte> wait() override;

 private:
  Operation operation_;
  Buffer output_;
  Transfers transfers_;
};

/// Starts the first step in the constructor. wait() runs the other steps.
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
  std::size_t block_bytes_;
  std::vector<BruckStep> steps_;
  Buffer output_;  // block 0 is this rank's own, until wait() rotates the blocks into rank order
  Transfers receives_;
  Transfers sends_;
};

}  // namespace tutti::comm
