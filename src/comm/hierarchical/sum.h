#pragma once
// A sum over several nodes, in place in memory that the ranks of each node map.
#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>

#include "comm/engine/operation.h"
#include "comm/hierarchical/levels.h"
#include "comm/shared/sum.h"

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
class HierarchicalSum final : public PendingSum {
 public:
  HierarchicalSum(std::shared_ptr<Levels> levels, Operation operation, SharedPlace place, const at::Tensor& flat,
                  std::shared_ptr<const WireCodec> codec, std::uint32_t number);

  void reduce(double scale) override;
  void finish() override;
  std::int64_t bytes_sent() const override { return bytes_sent_; }

 private:
  void wait_for_node(SharedProgress SharedRank::*progress) const;
  std::size_t slice_begin() const;
  void add_up_slice();
  void hand_out();

  std::shared_ptr<Levels> levels_;
  Operation operation_;
  SharedPlace place_;
  at::Tensor flat_;
  std::shared_ptr<const WireCodec> codec_;
  std::uint32_t number_;
  at::Tensor slice_;       // of `flat`, in this rank's memory
  at::Tensor wide_slice_;  // in the dtype that sums are kept in
  double share_ = 1;       // what the node's versions are multiplied by, so that encoded ones do not overflow
  std::shared_ptr<SumAcross> across_;
  std::int64_t bytes_sent_ = 0;
};

}  // namespace tutti::comm
