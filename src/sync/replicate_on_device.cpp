#include "sync/replicate_on_device.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "comm/tensor_checks.h"
#include "device/devices.h"
#include "device/host_copy.h"
#include "tutti/detail/comm/internal_call.h"

namespace tutti::sync {

namespace {

constexpr std::int64_t most_bytes_at_once = 128 << 20;

bool is_taken(const at::Tensor& tensor) {
  return devices::is_accelerator(tensor.device()) && tensor.layout() == at::kStrided &&
         tensor.is_non_overlapping_and_dense();
}

/// The values of `tensor` in one dimension, in the order of its elements whatever its strides are.
at::Tensor flat_values(const at::Tensor& tensor) {
  return comm::plain_memory(tensor.detach()).view({-1});
}

/// Views of `flat`, one for each tensor, as the bytes or the elements that flat_values() has.
std::vector<at::Tensor> parts_of(const at::Tensor& flat, const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> parts;
  parts.reserve(tensors.size());
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    const bool bytes = flat.scalar_type() == at::kByte;
    const std::int64_t length = bytes ? static_cast<std::int64_t>(tensor.nbytes()) : tensor.numel();
    const at::Tensor part = flat.narrow(0, begin, length);
    parts.push_back((bytes ? part.view(tensor.scalar_type()) : part).view(tensor.sizes()));
    begin += length;
  }
  return parts;
}

/// By index, whether the bytes of a tensor differ in two messages. Waits for the device.
std::vector<bool> differences(const at::Tensor& a, const at::Tensor& b, const std::vector<at::Tensor>& tensors) {
  const at::Tensor unequal = a != b;
  std::vector<at::Tensor> flags;
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    const auto length = static_cast<std::int64_t>(tensor.nbytes());
    flags.push_back(unequal.narrow(0, begin, length).any());
    begin += length;
  }
  const at::Tensor on_host = devices::copies_on_host({at::stack(flags)}).front();
  const bool* first = on_host.const_data_ptr<bool>();
  return std::vector<bool>(first, first + tensors.size());
}

/// `tensors` are in an order in which each begins at a multiple of its element's size.
void replicate_together(const std::vector<at::Tensor>& tensors, const Communicator& communicator,
                        const std::string& name, DeviceWrites writes) {
  std::vector<at::Tensor> flat;
  flat.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) flat.push_back(flat_values(tensor).view(at::kByte));
  const at::Tensor message = at::cat(flat);
  const bool compares = writes == DeviceWrites::if_different && communicator.rank() != 0;
  const at::Tensor before = compares ? message.clone() : at::Tensor();
  communicator.broadcast(message, 0, comm::internal_call(name)).wait();
  if (communicator.rank() == 0) return;
  const std::vector<at::Tensor> values = parts_of(message, tensors);
  if (!compares) return at::_foreach_copy_(tensors, values, /*non_blocking=*/true);
  const std::vector<bool> differs = differences(before, message, tensors);
  std::vector<at::Tensor> targets, sources;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!differs[i]) continue;
    targets.push_back(tensors[i]);
    sources.push_back(values[i]);
  }
  if (!targets.empty()) at::_foreach_copy_(targets, sources, /*non_blocking=*/true);
}

}  // namespace

std::vector<DeviceTensors> take_device_tensors(std::vector<at::Tensor>& tensors) {
  std::vector<DeviceTensors> groups;
  for (const at::Tensor& tensor : tensors) {
    if (!is_taken(tensor) || tensor.numel() == 0) continue;
    const auto is_of = [&](const DeviceTensors& group) { return group.front().device() == tensor.device(); };
    auto group = std::ranges::find_if(groups, is_of);
    if (group == groups.end()) group = groups.insert(groups.end(), DeviceTensors());
    group->push_back(tensor);
  }
  std::erase_if(tensors, is_taken);
  return groups;
}

void replicate_on_device(const DeviceTensors& tensors, const Communicator& communicator, const std::string& name,
                         DeviceWrites writes) {
  const at::NoGradGuard no_grad;
  DeviceTensors sorted = tensors;
  std::ranges::stable_sort(sorted, std::ranges::greater(), [](const at::Tensor& tensor) { return tensor.itemsize(); });
  std::vector<at::Tensor> together;
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : sorted) {
    together.push_back(tensor);
    bytes += static_cast<std::int64_t>(tensor.nbytes());
    if (bytes < most_bytes_at_once) continue;
    replicate_together(std::exchange(together, {}), communicator, name, writes);
    bytes = 0;
  }
  if (!together.empty()) replicate_together(together, communicator, name, writes);
}

void average_on_device(const DeviceTensors& tensors, const Communicator& communicator, const std::string& name) {
  const at::NoGradGuard no_grad;
  DeviceTensors sorted = tensors;
  std::ranges::stable_sort(sorted, {}, [](const at::Tensor& tensor) { return tensor.scalar_type(); });
  const at::ScalarType wide = devices::widest_float(sorted.front().device());
  // Each dtype is converted as a whole, so that the number of kernels does not depend on the number of tensors.
  std::vector<std::vector<at::Tensor>> of_dtype;
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : sorted) {
    if (of_dtype.empty() || of_dtype.back().front().scalar_type() != tensor.scalar_type()) of_dtype.emplace_back();
    of_dtype.back().push_back(tensor);
  }
  for (const std::vector<at::Tensor>& same : of_dtype) {
    std::vector<at::Tensor> values;
    for (const at::Tensor& tensor : same) values.push_back(flat_values(tensor));
    flat.push_back(at::cat(values).to(wide));
  }
  const at::Tensor message = flat.size() == 1 ? flat.front() : at::cat(flat);
  communicator.all_reduce(message, ReduceOp::mean, comm::internal_call(name)).wait();
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < of_dtype.size(); ++i) {
    const at::Tensor means = message.narrow(0, begin, flat[i].numel()).to(of_dtype[i].front().scalar_type());
    at::_foreach_copy_(of_dtype[i], parts_of(means, of_dtype[i]), /*non_blocking=*/true);
    begin += flat[i].numel();
  }
}

}  // namespace tutti::sync
