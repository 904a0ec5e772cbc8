#pragma once
// The all-reduce by recursive halving and doubling over point-to-point messages (recursive_halving_schedule.h). Each
// rank exchanges messages with few peers.
#include <ATen/core/TensorBody.h>

#include <memory>
#include <vector>

#include "comm/algorithms/buffer_pool.h"
#include "comm/algorithms/recursive_halving_schedule.h"
#include "comm/backend/operation.h"
#include "comm/reduction/partition.h"
#include "comm/reduction/reduce_tree.h"
#include "comm/transport/transport.h"
#include "tutti/detail/comm/pending.h"

namespace tutti::comm {

/// fp16 and bf16 are sent as fp32 and rounded once, at the end.
class RecursiveHalvingAllReduce final : public PendingAllReduce {
 public:
  RecursiveHalvingAllReduce(std::shared_ptr<Transport> transport, BufferPool& buffer_pool, Operation operation,
                            const at::Tensor& flat, Reduction reduction = {});

  void finish_reduce_scatter(double scale) override;
  void wait() override;
  std::int64_t bytes_sent() const override { return bytes_sent_; }

 private:
  /// The receives of one step, in chunks: one chunk is added while the next is received.
  struct IncomingChunks {
    std::vector<Range> chunks;  // in elements of the tensor
    std::vector<Buffer> buffers;
    Transfers transfers;
  };
  /// The sum of the right subtree, for the elements from `begin` on.
  struct StashedSum {
    Buffer buffer;
    std::size_t begin = 0;
  };

  std::vector<Range> chunks_in(const ShardRange& shards) const;
  Buffer local(const Range& chunk) const { return values_.part(chunk.offset * width_, chunk.length * width_); }
  Buffer stashed(const Range& chunk) const {
    return stash_.buffer.part((chunk.offset - stash_.begin) * width_, chunk.length * width_);
  }
  IncomingChunks post_receives(const RecursiveHalvingStep& step, BufferPool& buffer_pool);
  void send(const RecursiveHalvingStep& step);
  void receive(const RecursiveHalvingStep& step, IncomingChunks& incoming, const Reduction& reduction,
               Deadline deadline);
  void add_stash(const RecursiveHalvingStep& step, const Reduction& reduction) const;
  void add(const Buffer& left, const Buffer& right, const Buffer& result, const Reduction& reduction) const;

  std::shared_ptr<Transport> transport_;
  Operation operation_;
  Reduction reduction_;
  at::Tensor flat_;
  at::Tensor wide_;  // the values that are summed: `flat_` itself, or an fp32 copy of fp16 and bf16
  Buffer values_;
  std::size_t width_;
  RecursiveHalvingSchedule schedule_;
  std::vector<IncomingChunks> reduce_scatter_;  // by step
  std::vector<IncomingChunks> all_gather_;      // by step
  StashedSum stash_;
  std::size_t next_step_ = 0;  // of the phase in progress: reduce-scatter, then all-gather
  Transfers sends_;
  std::int64_t bytes_sent_ = 0;
};

}  // namespace tutti::comm
