#include "local_sgd/staging_buffer.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/cat.h>

#include "device/devices.h"
#include "device/host_copy.h"

namespace tutti::local_sgd {
namespace {

/// Calls `action(tensors, begin, length)` for each run of consecutive tensors on one device; `begin` and `length` are
/// its elements in the buffer.
template <typename Action>
void for_each_device(const std::vector<at::Tensor>& tensors, const Action& action) {
  std::int64_t begin = 0;
  for (std::size_t first = 0; first < tensors.size();) {
    std::vector<at::Tensor> run;
    std::int64_t length = 0;
    const at::Device device = tensors[first].device();
    for (; first < tensors.size() && tensors[first].device() == device; ++first) {
      run.push_back(tensors[first]);
      length += tensors[first].numel();
    }
    action(run, begin, length);
    begin += length;
  }
}

std::vector<at::Tensor> split(const at::Tensor& flat, const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> parts;
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    parts.push_back(flat.slice(0, begin, begin + tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
  return parts;
}

at::Tensor gather(const std::vector<at::Tensor>& tensors, at::ScalarType dtype) {
  std::vector<at::Tensor> flat;
  flat.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  return at::cat(flat).to(dtype);
}

}  // namespace

StagingBuffer::StagingBuffer(std::int64_t elements, at::ScalarType dtype)
    : values_(devices::pinned_empty({elements}, dtype)) {}

const devices::SideStream& StagingBuffer::side_stream(at::Device device) {
  for (const auto& [of_device, stream] : side_streams_) {
    if (of_device == device) return stream;
  }
  return side_streams_.emplace_back(device, devices::SideStream(device)).second;
}

void StagingBuffer::start_read(const std::vector<at::Tensor>& tensors) {
  for_each_device(tensors, [&](const std::vector<at::Tensor>& run, std::int64_t begin, std::int64_t length) {
    const at::Device device = run.front().device();
    const at::Tensor target = values_.slice(0, begin, begin + length);
    const at::Tensor source = gather(run, values_.scalar_type());
    if (!devices::is_accelerator(device)) {
      target.copy_(source);
      return;
    }
    // The side stream also waits for an earlier write, which reads the buffer.
    const auto gathered = devices::StreamEvent::on_current_stream(device);
    const devices::SideStream& side = side_stream(device);
    side.run([&] {
      gathered.block_current_stream();
      target.copy_(source, /*non_blocking=*/true);
    });
    sources_.push_back(source);
    reads_.push_back(side.record_event());
  });
}

void StagingBuffer::finish_read() {
  for (const devices::StreamEvent& read : reads_) read.wait();
  reads_.clear();
  sources_.clear();
}

const at::Tensor& StagingBuffer::values() {
  for (const devices::StreamEvent& write : writes_) {
    if (!write.is_reached()) write.wait();
  }
  writes_.clear();
  return values_;
}

template <typename Update>
void StagingBuffer::write(const std::vector<at::Tensor>& tensors, const Update& update) {
  for_each_device(tensors, [&](const std::vector<at::Tensor>& run, std::int64_t begin, std::int64_t length) {
    const at::Device device = run.front().device();
    const at::Tensor flat = values_.slice(0, begin, begin + length).to(device, /*non_blocking=*/true);
    update(run, split(flat, run));
    writes_.push_back(devices::StreamEvent::on_current_stream(device));
  });
}

void StagingBuffer::write_to(const std::vector<at::Tensor>& tensors) {
  write(tensors, [](at::TensorList run, at::TensorList values) { at::_foreach_copy_(run, values); });
}

void StagingBuffer::add_to(const std::vector<at::Tensor>& tensors) {
  write(tensors, [](at::TensorList run, at::TensorList values) { at::_foreach_add_(run, values); });
}

void StagingBuffer::mix_into(const std::vector<at::Tensor>& tensors, double share) {
  write(tensors, [share](at::TensorList run, at::TensorList values) {
    at::_foreach_mul_(run, share);
    at::_foreach_add_(run, values, 1 - share);
  });
}

}  // namespace tutti::local_sgd
