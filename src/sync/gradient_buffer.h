#pragma once
// Flat memory with a slot for each parameter's gradient.
//
// A parameter's .grad is undefined until it is used; then it is a tensor over the slot, with a storage of its own that
// begins there. It is no autograd view, so plain zero_grad() works, and each gradient has a version counter of its
// own. A program may hold a gradient that is no longer .grad: its storage then moves to memory of its own, and the
// values stay what they are. Not thread safe.
#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <vector>

#include "sync/bucket_plan.h"
#include "tutti/comm/communicator.h"

namespace tutti::sync {

class GradientBuffer {
 public:
  /// Gradients of one kind share memory.
  struct DtypeDevice {
    at::ScalarType dtype = at::kFloat;
    at::Device device = at::kCPU;
    bool operator==(const DtypeDevice&) const = default;
  };

  /// Memory comes from `channel`: the same plan on every rank.
  GradientBuffer(std::vector<at::Tensor> parameters, const BucketOptions& options, const Communicator& communicator);

  const BucketPlan& plan() const { return plan_; }
  std::int64_t bytes() const;
  /// Bucket `index` as a flat tensor of its dtype.
  const at::Tensor& bucket(int index) const { return buckets_[index]; }
  const at::Tensor& slot(int parameter) const { return slots_[parameter]; }

  /// Whether the parameter's .grad is its slot.
  bool aliased(int parameter) const;
  /// Makes sure that a defined .grad lives in its slot: copies it in if it does not. Returns whether it had to.
  /// Throws UsageError for a gradient that is not dense.
  bool move_in(int parameter);
  /// To be called before a slot that is not .grad is written to: what the program holds of it keeps its values. Costs a
  /// copy of this gradient if it holds something, else nothing.
  void detach_views(int parameter);
  /// Makes the slot the parameter's .grad, whatever it holds.
  void alias(int parameter);

  /// What plan_buckets() planned for.
  const std::vector<GradientSize>& sizes() const { return sizes_; }
  /// Whether somebody holds a tensor of his own over this memory, which replan() would move things under.
  bool has_outside_views() const;
  /// Another plan for the same gradients in the same memory: what slots hold goes with them, and gradients stay
  /// attached. No bucket may be under way.
  void rebuild(BucketPlan plan);

 private:
  void cut_buckets();

  std::vector<at::Tensor> parameters_;
  std::vector<GradientSize> sizes_;
  std::vector<DtypeDevice> group_types_;  ///< of each group
  BucketPlan plan_;
  std::vector<at::Tensor> memory_;  ///< the same
  std::vector<at::Tensor> buckets_;
  std::vector<at::Tensor> slots_;
};

}  // namespace tutti::sync
