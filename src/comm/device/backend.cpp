#include "comm/device/backend.h"

#include <ATen/ops/zeros.h>

#include <mutex>
#include <optional>
#include <utility>

#include "comm/backend/forwarding_backend.h"
#include "device/side_stream.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

using devices::SideStream;
using devices::StreamEvent;

/// The all-reduce of one group of ranks on one device.
class DeviceGroup {
 public:
  DeviceGroup(c10::intrusive_ptr<c10d::Backend> c10d_backend, at::Device device)
      : c10d_backend_(std::move(c10d_backend)), side_stream_(device) {}

  c10::intrusive_ptr<c10d::Work> start(const at::Tensor& flat) const {
    std::vector<at::Tensor> tensors{flat};
    c10d::AllreduceOptions options;
    options.asyncOp = true;
    return c10d_backend_->allreduce(tensors, options);
  }
  const SideStream& side_stream() const { return side_stream_; }
  void abort() const { c10d_backend_->abort(); }

 private:
  c10::intrusive_ptr<c10d::Backend> c10d_backend_;
  SideStream side_stream_;
};

/// Exceptions of c10d name no ranks: the communicator finds the failed ranks.
template <typename Call>
auto rethrow_as_transfer_error(const Call& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    throw TransferError(TransferError::Kind::connection_closed, {}, first_line(error.what()));
  }
}

class DeviceAllReduce final : public PendingAllReduce {
 public:
  DeviceAllReduce(std::shared_ptr<const DeviceGroup> group, at::Tensor flat, int size)
      : group_(std::move(group)),
        flat_(std::move(flat)),
        size_(size),
        work_(rethrow_as_transfer_error([&] { return group_->start(flat_); })) {}

  void finish_reduce_scatter(double scale) override {
    rethrow_as_transfer_error([&] {
      group_->side_stream().run([&] {
        // On a device this does not block the CPU: the side stream waits.
        work_->wait();
        if (scale != 1) flat_.mul_(scale);
      });
      completed_.emplace(group_->side_stream().record_event());
    });
  }
  void wait() override {}
  void block_current_stream() const override { completed_->block_current_stream(); }
  // The traffic of a ring all-reduce: each rank sends all shards but one, twice.
  std::int64_t bytes_sent() const override {
    return 2 * static_cast<std::int64_t>(flat_.nbytes()) * (size_ - 1) / size_;
  }

 private:
  std::shared_ptr<const DeviceGroup> group_;
  at::Tensor flat_;
  int size_;
  c10::intrusive_ptr<c10d::Work> work_;
  std::optional<StreamEvent> completed_;
};

class DeviceBackend final : public ForwardingBackend {
 public:
  DeviceBackend(const std::shared_ptr<Backend>& host_backend, C10dBackendFactory factory, std::string group)
      : ForwardingBackend({.name = factory.name + " + " + host_backend->traits().name,
                           .inline_payload_bytes = host_backend->traits().inline_payload_bytes,
                           .equal_lengths = host_backend->traits().equal_lengths,
                           .spin_count = host_backend->traits().spin_count,
                           .device = factory.device},
                          host_backend),
        factory_(std::move(factory)),
        group_name_(std::move(group)) {}

  std::unique_ptr<PendingAllReduce> start_all_reduce(const Operation& operation, const at::Tensor& flat,
                                                     const std::shared_ptr<const WireCodec>& codec) override {
    const auto group = group_of(flat);
    return group ? std::make_unique<DeviceAllReduce>(group, flat, size())
                 : inner().start_all_reduce(operation, flat, codec);
  }

  // The first all-reduce connects the ranks. It runs here, where all ranks take part: in a backward pass, ranks that
  // use their groups in different orders would wait for each other.
  at::Tensor allocate(const Operation& operation, std::int64_t bytes, at::Device device) override {
    if (device.type() != factory_.device) return inner().allocate(operation, bytes, device);
    const std::lock_guard lock(mutex_);
    try {
      if (!group_) {
        auto group = std::make_shared<DeviceGroup>(factory_.make(group_name_, rank(), size(), device), device);
        group->start(at::zeros({1}, at::TensorOptions(at::kFloat).device(device)))->wait();
        group_ = std::move(group);
      }
    } catch (const std::exception& error) {
      throw PeerError(
          "Connecting over " + factory_.name + " on " + device.str() + " failed: " + first_line(error.what()), {});
    }
    return at::zeros({bytes}, at::TensorOptions(at::kByte).device(device));
  }

  std::shared_ptr<Backend> split(const std::vector<int>& members, const std::string& name,
                                 std::chrono::milliseconds timeout) override {
    return make_device_backend(inner().split(members, name, timeout), factory_, name);
  }
  std::shared_ptr<Backend> duplicate(const std::string& name, std::chrono::milliseconds timeout) override {
    return make_device_backend(inner().duplicate(name, timeout), factory_, name);
  }
  void close() noexcept override {
    inner().close();
    try {
      const std::lock_guard lock(mutex_);
      if (group_) group_->abort();
    } catch (const std::exception&) {
      // The communicator is closed in any case, so an error of c10d is of no use to the caller.
    }
  }

 private:
  std::shared_ptr<const DeviceGroup> group_of(const at::Tensor& flat) {
    const std::lock_guard lock(mutex_);
    return flat.device().type() == factory_.device ? group_ : nullptr;
  }

  C10dBackendFactory factory_;
  std::string group_name_;
  std::mutex mutex_;
  std::shared_ptr<const DeviceGroup> group_;
};

}  // namespace

std::shared_ptr<Backend> make_device_backend(const std::shared_ptr<Backend>& host_backend, C10dBackendFactory factory,
                                             std::string group) {
  return std::make_shared<DeviceBackend>(host_backend, std::move(factory), std::move(group));
}

}  // namespace tutti::comm
