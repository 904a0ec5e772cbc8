#pragma once
// The all-reduce over several nodes, in place in memory that the ranks of each node share.
#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>

#include "comm/backend/operation.h"
#include "comm/hierarchical/node_groups.h"
#include "comm/shm/node_state.h"
#include "tutti/detail/comm/pending.h"

namespace tutti::comm {

// All-reduce number n of a communicator, in three steps:
//   constructor             this rank's contribution is complete: sets reductions_started to n.
//   finish_reduce_scatter   waits until all ranks of the node have started n. Reduces the node's contributions to this
//                           rank's shard, and starts the all-reduce of the shard among its owners on all nodes. Then
//                           reduces the previous all-reduce between nodes, whose messages have arrived meanwhile: the
//                           messages of one are in flight while another is added.
//   wait                    completes the remaining steps, copies the shard's result into the memory of the node's
//                           other ranks, and sets reductions_finished to n. Waits until all ranks of the node have
//                           finished n.
// Each rank sends only its shard to other nodes. For n bytes and L ranks on each of M nodes these are
// 2 n / L * (M - 1) / M bytes.
class HierarchicalAllReduce final : public PendingAllReduce {
 public:
  HierarchicalAllReduce(std::shared_ptr<NodeGroups> groups, Operation operation, ShmLocation location,
                        const at::Tensor& flat, std::shared_ptr<const WireCodec> codec, std::uint32_t number);

  void finish_reduce_scatter(double scale) override;
  void wait() override;
  std::int64_t bytes_sent() const override { return bytes_sent_; }

 private:
  void wait_for_node(SequenceCounter RankState::*progress) const;
  void reduce_shard();
  void copy_to_node();

  std::shared_ptr<NodeGroups> groups_;
  Operation operation_;
  ShmLocation location_;
  at::Tensor flat_;
  std::shared_ptr<const WireCodec> codec_;
  std::uint32_t number_;
  std::size_t shard_begin_ = 0;  // in bytes
  at::Tensor shard_;             // of `flat`, in this rank's memory
  at::Tensor wide_shard_;        // the shard in fp32 if `flat` is fp16 or bf16, else `shard_`
  std::shared_ptr<InterNodeSum> inter_node_sum_;
  std::int64_t bytes_sent_ = 0;
};

}  // namespace tutti::comm
