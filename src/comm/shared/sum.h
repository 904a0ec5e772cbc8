#pragma once
// A sum in place, in memory that all ranks of a node map.
#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>

#include "comm/engine/operation.h"
#include "comm/shared/node.h"
#include "comm/sums/combine.h"
#include "tutti/detail/comm/pending.h"

namespace tutti::comm {

/// The memory of one Communicator::allocate(): the same offsets on every rank.
struct SharedAllocation {
  SharedMemory memory;
  std::byte* begin = nullptr;  // this rank's
  std::size_t bytes = 0;
  std::int64_t number = 0;  // counts the allocations of a channel

  bool holds(const std::byte* data, std::size_t size) const { return data >= begin && data + size <= begin + bytes; }
};

/// A tensor's place in an allocation.
struct SharedPlace {
  std::shared_ptr<const SharedAllocation> allocation;
  std::size_t offset = 0;

  std::byte* of(int rank) const { return allocation->memory.of(rank) + offset; }
};

// Sum number n of a channel. Each rank owns a slice of it:
//   started(n)   this rank's version is complete; it does not touch the memory until the sum is finished.
//   reduce       waits until all have started n, adds up its slice, writes the result into everyone's memory, and says
//                reduced(n). Slices do not overlap, so every byte has one writer.
//   finish       waits until all have reduced n: every slice of this rank's memory holds its result, and nobody reads
//                or writes it any more. Only then may the next version be written there.
// started and reduced rise by one with each sum, in the order in which sums are started, equal on all ranks.
//
// Each rank touches for n bytes and N ranks: n/N of every version once to read, and n/N of every memory once to write.
class SharedSum final : public PendingSum {
 public:
  SharedSum(std::shared_ptr<SharedNode> node, Operation operation, SharedPlace place, const at::Tensor& flat,
            std::uint32_t number, Combination combination = {});

  void reduce(double scale) override;
  void finish() override;
  std::int64_t bytes_sent() const override;

 private:
  std::shared_ptr<SharedNode> node_;
  Operation operation_;
  SharedPlace place_;
  at::ScalarType dtype_;
  std::size_t elements_;
  std::uint32_t number_;
  Combination combination_;
};

}  // namespace tutti::comm
