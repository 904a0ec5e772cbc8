#pragma once
// Flat memory with a slot for each parameter's gradient.
//
// A parameter's .grad is undefined until it is used; then it is a tensor over the slot, with its own storage, which
// begins at the slot. It is not an autograd view, so plain zero_grad() works, and each gradient has its own version
// counter. A program may hold a gradient that is no longer .grad: its storage then moves to separate memory, and its
// values do not change. Not thread safe.
//
// On a device LibTorch ignores record_stream() of a gradient, because its storage is not the allocator's. Streams that
// use gradients are recorded for the whole memory instead: see record_current_stream().
#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <vector>

#include "sync/bucket_plan.h"
#include "tutti/comm/communicator.h"

namespace tutti::sync {

class GradientBuffer {
 public:
  /// Gradients of equal dtype and device share memory.
  struct DtypeDevice {
    at::ScalarType dtype = at::kFloat;
    at::Device device = at::kCPU;
    bool operator==(const DtypeDevice&) const = default;
  };

  /// Allocates memory from `communicator`. The plan is equal on all ranks. Every rank must call it.
  GradientBuffer(std::vector<at::Tensor> parameters, const BucketOptions& options, const Communicator& communicator);

  const BucketPlan& plan() const { return plan_; }
  /// Bucket `index` as a flat tensor of its dtype.
  const at::Tensor& bucket(int index) const { return buckets_[index]; }
  const at::Tensor& slot(int parameter) const { return slots_[parameter]; }
  /// The device of a group of sizes().
  at::Device group_device(int group) const { return group_types_[group].device; }

  /// Whether the parameter's .grad is its slot.
  bool aliased(int parameter) const;
  /// Copies a defined .grad into its slot unless it is there, and makes the slot the .grad. Returns whether it copied.
  /// Throws UsageError for a gradient that is not dense.
  bool move_in(int parameter);
  /// The same for several parameters of one dtype and device, with one kernel. Returns those that it copied.
  std::vector<int> move_in_together(const std::vector<int>& parameters);
  /// Throws UsageError unless the parameter's .grad is dense or undefined.
  void require_dense(int parameter) const;
  /// Must be called before a write to a slot that is not .grad, so that tensors of the program over the slot keep their
  /// values. Copies this gradient if the program holds such a tensor.
  void detach_views(int parameter);
  /// Makes the slot the parameter's .grad; the values of the slot do not change.
  void alias(int parameter);

  /// Must be called with each stream that reads or writes gradients on `device`, as the calling thread's current
  /// stream: the memory is not reused before the stream has run the work that is queued when the last of this object
  /// and its gradients is destroyed.
  void record_current_stream(at::Device device) const;

  /// The argument of plan_buckets().
  const std::vector<GradientSize>& sizes() const { return sizes_; }
  /// Whether the program holds a tensor over this memory. rebuild() would change its values.
  bool has_outside_views() const;
  /// Applies another plan for the same gradients in the same memory. Slots keep their values, and .grad stays the slot.
  /// No bucket may be in flight.
  void rebuild(BucketPlan plan);

 private:
  void cut_buckets();

  std::vector<at::Tensor> parameters_;
  std::vector<GradientSize> sizes_;
  std::vector<DtypeDevice> group_types_;  ///< by group
  BucketPlan plan_;
  std::vector<at::Tensor> memory_;  ///< by group
  std::vector<at::Tensor> buckets_;
  std::vector<at::Tensor> slots_;
};

}  // namespace tutti::sync
