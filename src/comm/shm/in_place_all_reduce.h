#pragma once
// The all-reduce in place, in memory that all ranks of a node share.
#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>

#include "comm/backend/operation.h"
#include "comm/shm/node_state.h"
#include "tutti/detail/comm/pending.h"

namespace tutti::comm {

// All-reduce number n of a communicator. Each rank owns a shard of the tensor:
//   constructor             this rank's contribution is complete: sets reductions_started to n. The rank does not
//                           access the memory until wait() returns.
//   finish_reduce_scatter   waits until all ranks have started n, reduces its shard, writes the result into the memory
//                           of all ranks, and sets reductions_finished to n. Shards do not overlap, so each byte has
//                           one writer.
//   wait                    waits until all ranks have finished n: every shard of this rank's memory holds its result,
//                           and no rank reads or writes it any more. Only then may the next contribution be written.
// Both counters grow by one with each all-reduce, in the order in which all-reduces are started, equal on all ranks.
//
// For n bytes and N ranks, each rank reads n/N bytes of every contribution and writes n/N bytes of every rank's memory.
class InPlaceAllReduce final : public PendingAllReduce {
 public:
  InPlaceAllReduce(std::shared_ptr<NodeState> node, Operation operation, ShmLocation location, const at::Tensor& flat,
                   std::uint32_t number);

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
};

}  // namespace tutti::comm
