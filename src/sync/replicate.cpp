#include "sync/replicate.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>

#include "tutti/detail/comm/internal_call.h"

namespace tutti::sync {

namespace {

constexpr std::int64_t batch_bytes = 16 << 20;

/// Broadcasts `tensors` of one dtype as one message.
void replicate_together(const std::vector<at::Tensor>& tensors, const Communicator& communicator) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape({-1}).cpu());
  const at::Tensor message = at::cat(flat);
  communicator.broadcast(message, 0, comm::internal_call("replicate")).wait();
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    at::Tensor target = tensor;
    target.copy_(message.slice(0, begin, begin + tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
}

}  // namespace

void replicate(const std::vector<at::Tensor>& tensors, const Communicator& communicator) {
  if (communicator.size() == 1) return;
  const at::NoGradGuard no_grad;
  std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;
  for (const at::Tensor& tensor : tensors) by_dtype[tensor.scalar_type()].push_back(tensor);
  for (const auto& [dtype, same] : by_dtype) {
    std::vector<at::Tensor> together;
    std::int64_t bytes = 0;
    for (const at::Tensor& tensor : same) {
      together.push_back(tensor);
      bytes += static_cast<std::int64_t>(tensor.nbytes());
      if (bytes < batch_bytes) continue;
      replicate_together(together, communicator);
      together.clear();
      bytes = 0;
    }
    if (!together.empty()) replicate_together(together, communicator);
  }
}

}  // namespace tutti::sync
