#pragma once
// Buffers that a TorchScript module assigns: `self.mean = 0.9 * self.mean + 0.1 * x.mean()`.
#include <ATen/core/TensorBody.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

namespace torch::jit {
struct Module;
}

namespace tutti {

/// A buffer of a script or of a submodule for which a method of the script has an assignment.
struct AssignedBuffer {
  std::string name;
  c10::intrusive_ptr<c10::ivalue::Object> object;
  std::size_t slot;
  at::Tensor registered;  ///< in the torch::nn::Module, checkpoints and buffer synchronization

  static std::vector<AssignedBuffer> of(const torch::jit::Module& script);
};

/// A call of the script. An assignment puts another tensor into the script; finish() copies its values to the
/// registered tensor. The script reads copies, because backward may need a buffer's value of before.
class AssigningCall {
 public:
  AssigningCall(const std::vector<AssignedBuffer>& buffers, std::mutex& mutex);
  /// The script has the registered tensors again.
  ~AssigningCall();
  AssigningCall(const AssigningCall&) = delete;
  AssigningCall& operator=(const AssigningCall&) = delete;

  /// Throws UsageError, and changes no buffer, if the script has assigned another shape, or a dtype that cannot be
  /// converted.
  void finish();

 private:
  std::unique_lock<std::mutex> lock_;  // of a script that assigns; other scripts may run on several threads at once
  const std::vector<AssignedBuffer>& buffers_;
};

}  // namespace tutti
