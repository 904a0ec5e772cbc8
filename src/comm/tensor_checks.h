#pragma once
// Checks the tensors of a collective before anything is sent. The checks throw UsageError; `what` names the call.
#include <ATen/core/TensorBody.h>

#include <vector>

#include "device/side_stream.h"
#include "tutti/comm/reduce_op.h"

namespace tutti::comm {

/// Returns a tensor whose contiguous memory holds the values of `tensor`: `tensor` itself, or a copy. The memory of a
/// tensor may hold other values than the tensor: conj() and the imaginary part of a conj() are lazy, and a zero tensor
/// has no memory. Code that reads memory must read that of the result.
at::Tensor plain_memory(const at::Tensor& tensor);

/// Where a backend works on a tensor that is on a device.
enum class DeviceAccess {
  direct,  ///< in the device's memory
  staged,  ///< in a copy in pinned memory
};

/// A tensor as contiguous memory outside autograd. The memory is the tensor's own, or a copy if that is not
/// plain_memory() or has no owner (at::from_blob without a deleter), or if the tensor is staged.
class ContiguousTensor {
 public:
  /// The uses of the tensor in a collective.
  enum class Use { input, output, in_place };

  /// `tensor` must be dense. Throws UsageError unless it is on a device of this process. For a tensor that the
  /// collective writes to, throws it also if elements share memory, and bumps the tensor's version. Copies on a device
  /// are queued on the calling thread's current stream.
  ContiguousTensor(const char* what, const at::Tensor& tensor, Use use, DeviceAccess access);

  /// The memory that the backend works on.
  const at::Tensor& memory() const { return memory_; }
  /// Queues the copy of a staged input to memory(), on the calling thread's current stream. Returns false if there is
  /// nothing to copy.
  bool copy_to_host() const;
  /// Copies memory() to the tensor, if it is a copy. On a device, queues the copy on the calling thread's current
  /// stream.
  void write_back() const;
  /// See SideStream::record_use.
  void record_use(const devices::SideStream& stream) const;

 private:
  at::Tensor tensor_;
  at::Tensor on_device_;  // contiguous; undefined unless the tensor is a staged input
  at::Tensor memory_;
};

void require_dense(const char* what, const at::Tensor& tensor);
/// Requires that each element has memory of its own, so that every value can be written.
void require_writable(const char* what, const at::Tensor& tensor);
/// Requires that no two of the tensors are one place in memory, as in std::vector<at::Tensor>(size, tensor).
void require_distinct(const char* what, const std::vector<at::Tensor>& outputs);
/// Requires the CPU or a device that this process has.
void require_available_device(const char* what, const at::Tensor& tensor);
void require_reducible(const char* what, const at::Tensor& tensor, ReduceOp op);
/// Returns `input`, or a copy of it if its memory overlaps with that of `output`, unless one of the two is this rank's
/// part of the other. Copies on a device are queued on the calling thread's current stream.
at::Tensor apart_from(const at::Tensor& output, const at::Tensor& input, int rank);
/// Returns `inputs`, with a copy of each whose memory overlaps with that of an output.
std::vector<at::Tensor> apart_from(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs);
/// Requires that `whole` holds `size` times the elements of `part`, of the same dtype.
void require_parts(const char* what, const char* whole_name, const at::Tensor& whole, const char* part_name,
                   const at::Tensor& part, int size);
/// Requires that both hold the same number of elements, divisible by `size`, of the same dtype.
void require_equal_sizes(const char* what, const at::Tensor& output, const at::Tensor& input, int size);

}  // namespace tutti::comm
