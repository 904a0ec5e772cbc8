#include "sync/replicate.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <cstring>
#include <map>
#include <sstream>
#include <string>

#include "comm/tensor_checks.h"
#include "sync/replicate_on_device.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/internal_call.h"

namespace tutti::sync {

namespace {

constexpr std::int64_t batch_bytes = 16 << 20;

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

/// Reduces the dimensions that `expanded` repeats to one element.
at::Tensor without_repeats(at::Tensor tensor, const at::Tensor& expanded) {
  for (std::int64_t i = 0; i < expanded.dim(); ++i) {
    if (expanded.stride(i) == 0 && expanded.size(i) > 1) tensor = tensor.narrow(i, 0, 1);
  }
  return tensor;
}

/// Writes `values`, of the same dtype and number of elements and contiguous, to `tensor` unless it holds them.
void write_if_different(const at::Tensor& tensor, const at::Tensor& values) {
  const auto holds_values = [&] { return same_bytes(comm::plain_memory(tensor.detach().cpu()), values); };
  if (holds_values()) return;
  without_repeats(tensor, tensor).copy_(without_repeats(values.view(tensor.sizes()), tensor));
  if (tensor.is_non_overlapping_and_dense() || holds_values()) return;
  std::ostringstream text;
  text << "a tensor of shape " << tensor.sizes()
       << " cannot take the values of another rank, because its elements share memory (expand() or unfold()): make it "
          "contiguous() before prepare()";
  throw UsageError(text.str());
}

}  // namespace

at::Tensor flatten(const std::vector<at::Tensor>& tensors, at::ScalarType dtype) {
  std::vector<at::Tensor> flat;
  flat.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    flat.push_back(comm::plain_memory(tensor.detach().cpu()).view({-1}).to(dtype));
  }
  return flat.empty() ? at::empty({0}, dtype) : at::cat(flat);
}

void unflatten_into(const at::Tensor& flat, const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    write_if_different(tensor, flat.slice(0, begin, begin + tensor.numel()).to(tensor.scalar_type()));
    begin += tensor.numel();
  }
}

void replicate(std::vector<at::Tensor> tensors, const Communicator& communicator, const std::string& name,
               DeviceWrites writes) {
  if (communicator.size() == 1) return;
  for (const DeviceTensors& group : take_device_tensors(tensors))
    replicate_on_device(group, communicator, name, writes);
  const auto replicate_together = [&](const std::vector<at::Tensor>& together) {
    const at::Tensor message = flatten(together, together.front().scalar_type());
    communicator.broadcast(message, 0, comm::internal_call(name)).wait();
    unflatten_into(message, together);
  };
  std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;
  for (const at::Tensor& tensor : tensors) by_dtype[tensor.scalar_type()].push_back(tensor);
  for (const auto& [dtype, same] : by_dtype) {
    std::vector<at::Tensor> together;
    std::int64_t bytes = 0;
    for (const at::Tensor& tensor : same) {
      together.push_back(tensor);
      bytes += static_cast<std::int64_t>(tensor.nbytes());
      if (bytes < batch_bytes) continue;
      replicate_together(together);
      together.clear();
      bytes = 0;
    }
    if (!together.empty()) replicate_together(together);
  }
}

void average(std::vector<at::Tensor> tensors, const Communicator& communicator, const std::string& name) {
  for (const DeviceTensors& group : take_device_tensors(tensors)) average_on_device(group, communicator, name);
  if (tensors.empty()) return;
  // One message in fp64 for all dtypes, because buffers are small.
  const at::Tensor message = flatten(tensors, at::kDouble);
  communicator.all_reduce(message, ReduceOp::mean, comm::internal_call(name)).wait();
  unflatten_into(message, tensors);
}

}  // namespace tutti::sync
