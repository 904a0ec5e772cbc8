#pragma once
// A sum over several nodes, in place in memory that the ranks of each node map.
#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>

#include "comm/backend/operation.h"
#include "comm/hierarchical/node_groups.h"
#include "comm/shm/in_place_all_reduce.h"

namespace tutti::comm {

// Sum number n of a channel, in three steps:
//   started(n)   this rank's version is complete.
//   reduce       when all ranks of the node have started: adds up the node's versions of its slice, and starts summing
//                the slice with the ranks that own it on other nodes. Then adds up the sum before, whose messages came
//                meanwhile: one sum's are under way while another's are added.
//   finish       completes what is left, copies the slice's result into the memory of the node's other ranks, and says
//                reduced(n); waits until all ranks of the node have said it.
// Between nodes each rank sends the messages of its slice alone: for n bytes, L ranks on each of M nodes,
// 2 n / L * (M - 1) / M.
class HierarchicalAllReduce final : public PendingAllReduce {
 public:
  HierarchicalAllReduce(std::shared_ptr<NodeGroups> groups, Operation operation, ShmLocation location,
                        const at::Tensor& flat, std::shared_ptr<const WireCodec> codec, std::uint32_t number);

  void finish_reduce_scatter(double scale) override;
  void wait() override;
  std::int64_t bytes_sent() const override { return bytes_sent_; }

 private:
  void wait_for_node(SequenceCounter RankState::*progress) const;
  std::size_t shard_begin() const;
  void reduce_shard();
  void copy_to_node();

  std::shared_ptr<NodeGroups> groups_;
  Operation operation_;
  ShmLocation location_;
  at::Tensor flat_;
  std::shared_ptr<const WireCodec> codec_;
  std::uint32_t number_;
  at::Tensor shard_;       // of `flat`, in this rank's memory
  at::Tensor wide_shard_;  // in the dtype that sums are kept in
  double prescale_ = 1;    // what the node's versions are multiplied by, so that encoded ones do not overflow
  std::shared_ptr<InterNodeSum> inter_node_sum_;
  std::int64_t bytes_sent_ = 0;
};

}  // namespace tutti::comm
