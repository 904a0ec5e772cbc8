#pragma once
// A sum in place, in memory that all ranks of a node map.
#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>

#include "comm/backend/operation.h"
#include "comm/reduction/reduce_tree.h"
#include "comm/shm/node_state.h"
#include "tutti/detail/comm/pending.h"

namespace tutti::comm {

/// The memory of one Communicator::allocate(): the same offsets on every rank.
struct ShmAllocation {
  SharedMemory memory;
  std::byte* begin = nullptr;  // this rank's
  std::size_t bytes = 0;
  std::int64_t number = 0;  // counts the allocations of a channel

  bool contains(const std::byte* data, std::size_t size) const { return data >= begin && data + size <= begin + bytes; }
};

/// A tensor's place in an allocation.
struct ShmLocation {
  std::shared_ptr<const ShmAllocation> allocation;
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
class InPlaceAllReduce final : public PendingAllReduce {
 public:
  InPlaceAllReduce(std::shared_ptr<NodeState> node, Operation operation, ShmLocation location, const at::Tensor& flat,
                   std::uint32_t number, Reduction reduction = {});

  void finish_reduce_scatter(double scale) override;
  void wait() override;
  std::int64_t bytes_sent() const override;

 private:
  std::shared_ptr<NodeState> node_;
  Operation operation_;
  ShmLocation location_;
  at::ScalarType dtype_;
  std::size_t elements_;
  std::uint32_t number_;
  Reduction reduction_;
};

}  // namespace tutti::comm
