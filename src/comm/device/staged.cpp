#include "comm/device/staged.h"

#include <ATen/ops/empty.h>

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "comm/backend/forwarding_backend.h"
#include "comm/device/staged_all_reduce.h"
#include "comm/device/staging_buffers.h"
#include "device/devices.h"

namespace tutti::comm {
namespace {

class StagedBackend final : public ForwardingBackend {
 public:
  explicit StagedBackend(const std::shared_ptr<Backend>& host)
      : ForwardingBackend({.name = "staged + " + host->traits().name,
                           .inline_payload_bytes = host->traits().inline_payload_bytes,
                           .equal_lengths = host->traits().equal_lengths,
                           .spin_count = host->traits().spin_count,
                           .all_devices = host->traits().all_devices,
                           .device = devices::accelerator_type(),
                           .fixed_order = host->traits().fixed_order},
                          host) {}

  std::unique_ptr<PendingAllReduce> start_all_reduce(const Operation& operation, const at::Tensor& flat,
                                                     const std::shared_ptr<const WireCodec>& codec) override {
    const bool is_on_device = devices::is_accelerator(flat.device());
    return std::make_unique<StagedAllReduce>(shared_inner(), operation, flat,
                                             is_on_device ? buffers_.slice_of(flat) : StagingSlice{nullptr, flat, flat},
                                             codec, streams_of(flat.device()), is_closed_);
  }

  at::Tensor allocate(const Operation& operation, std::int64_t bytes, at::Device device) override {
    at::Tensor host = inner().allocate(operation, bytes, at::kCPU);
    if (!devices::is_accelerator(device)) return host;
    const at::Tensor memory = at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
    streams_of(device)->record_use(memory);
    buffers_.add(memory, std::move(host));
    return memory;
  }

  std::shared_ptr<Backend> split(const std::vector<int>& members, const std::string& name,
                                 std::chrono::milliseconds timeout) override {
    return make_staged_backend(inner().split(members, name, timeout));
  }
  std::shared_ptr<Backend> duplicate(const std::string& name, std::chrono::milliseconds timeout) override {
    return make_staged_backend(inner().duplicate(name, timeout));
  }
  void close() noexcept override {
    *is_closed_ = true;
    inner().close();
  }

 private:
  std::shared_ptr<StagingStreams> streams_of(at::Device device) {
    const std::lock_guard lock(mutex_);
    auto& streams = streams_[{device.type(), device.index()}];
    if (!streams) streams = std::make_shared<StagingStreams>(device);
    return streams;
  }

  std::shared_ptr<std::atomic<bool>> is_closed_ = std::make_shared<std::atomic<bool>>(false);
  StagingBuffers buffers_;
  std::mutex mutex_;
  std::map<std::pair<at::DeviceType, at::DeviceIndex>, std::shared_ptr<StagingStreams>> streams_;
};

}  // namespace

std::shared_ptr<Backend> make_staged_backend(std::shared_ptr<Backend> host) {
  return std::make_shared<StagedBackend>(host);
}

}  // namespace tutti::comm
