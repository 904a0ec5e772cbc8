#pragma once
// Checks the tensors of a collective before anything is sent. The checks throw UsageError; `what` names the call.
#include <ATen/core/TensorBody.h>

#include "tutti/comm/reduce_op.h"

namespace tutti::comm {

/// Returns a tensor whose contiguous memory holds the values of `tensor`: `tensor` itself, or a copy. The memory of a
/// tensor may hold other values than the tensor: conj() and the imaginary part of a conj() are lazy, and a zero tensor
/// has no memory. Code that reads memory must read that of the result.
at::Tensor plain_memory(const at::Tensor& tensor);

/// A tensor as contiguous memory outside autograd. The memory is the tensor's own, or a copy if that is not
/// plain_memory() or has no owner (at::from_blob without a deleter).
class ContiguousTensor {
 public:
  /// Throws UsageError unless the tensor is dense and on the CPU. for_output() throws it also if elements share memory,
  /// and bumps the tensor's version, because the collective will write to it.
  static ContiguousTensor for_output(const char* what, const at::Tensor& tensor);
  static ContiguousTensor for_input(const char* what, const at::Tensor& tensor);

  const at::Tensor& memory() const { return memory_; }
  /// Copies memory() to the tensor, if it is a copy.
  void write_back() const;

 private:
  ContiguousTensor(at::Tensor tensor, at::Tensor memory) : tensor_(std::move(tensor)), memory_(std::move(memory)) {}

  at::Tensor tensor_;
  at::Tensor memory_;
};

void require_dense(const char* what, const at::Tensor& tensor);
/// Requires that each element has memory of its own, so that every value can be written.
void require_writable(const char* what, const at::Tensor& tensor);
void require_on_cpu(const char* what, const at::Tensor& tensor);
void require_reducible(const char* what, const at::Tensor& tensor, ReduceOp op);
/// Requires that `whole` holds `size` times the elements of `part`, of the same dtype.
void require_parts(const char* what, const char* whole_name, const at::Tensor& whole, const char* part_name,
                   const at::Tensor& part, int size);
/// Requires that both hold the same number of elements, divisible by `size`, of the same dtype.
void require_equal_sizes(const char* what, const at::Tensor& output, const at::Tensor& input, int size);

}  // namespace tutti::comm
