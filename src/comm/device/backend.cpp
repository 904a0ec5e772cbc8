#include "comm/device/backend.h"

#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

#include "comm/backend/forwarding_backend.h"
#include "comm/device/collectives.h"
#include "comm/device/device_group.h"
#include "device/devices.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

using devices::StreamEvent;

DeviceGroup::WorkPtr start_sum(c10d::Backend& backend, const at::Tensor& flat) {
  std::vector<at::Tensor> tensors{flat};
  return backend.allreduce(tensors, c10d::AllreduceOptions());
}

/// The all-reduce begins with finish_reduce_scatter(), on the queue thread, in the order of operations. It runs after
/// the work that the program's stream held in the constructor.
class DeviceAllReduce final : public PendingAllReduce {
 public:
  DeviceAllReduce(std::shared_ptr<DeviceGroup> group, Operation operation, at::Tensor flat)
      : group_(std::move(group)),
        operation_(std::move(operation)),
        flat_(std::move(flat)),
        inputs_ready_(std::make_shared<const StreamEvent>(StreamEvent::on_current_stream(flat_.device()))) {
    const at::Device device = flat_.device();
    if (devices::is_accelerator(device)) stream_ = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  }
  // The program may write to the tensor after a synchronization that it did not wait for.
  ~DeviceAllReduce() override {
    try {
      if (completed_ && stream_ && !completed_->is_reached()) completed_->block(*stream_);
    } catch (const std::exception&) {
      // The device failed; the watchdog reports that.
    }
  }
  DeviceAllReduce(const DeviceAllReduce&) = delete;
  DeviceAllReduce& operator=(const DeviceAllReduce&) = delete;

  void finish_reduce_scatter(double scale) override {
    completed_ = group_->run_after(
        inputs_ready_, operation_, flat_, [&](c10d::Backend& backend) { return start_sum(backend, flat_); },
        [&] {
          if (scale != 1) flat_.mul_(scale);
        });
  }
  void wait() override {}
  void block_current_stream() const override { completed_->block_current_stream(); }
  // The traffic of a ring all-reduce: each rank sends all shards but one, twice.
  std::int64_t bytes_sent() const override {
    return 2 * static_cast<std::int64_t>(flat_.nbytes()) * (group_->size() - 1) / group_->size();
  }

 private:
  std::shared_ptr<DeviceGroup> group_;
  Operation operation_;
  at::Tensor flat_;
  std::optional<c10::Stream> stream_;  // the program's; none on the CPU
  DeviceGroup::EventPtr inputs_ready_;
  DeviceGroup::EventPtr completed_;
};

class DeviceBackend final : public ForwardingBackend {
 public:
  DeviceBackend(const std::shared_ptr<Backend>& host_backend, C10dBackendFactory factory, std::string group)
      : ForwardingBackend({.name = factory.name + " + " + host_backend->traits().name,
                           .inline_payload_bytes = host_backend->traits().inline_payload_bytes,
                           .equal_lengths = host_backend->traits().equal_lengths,
                           .spin_count = host_backend->traits().spin_count,
                           .device = factory.device,
                           .device_collectives = factory.device != c10::DeviceType::CPU,
                           .fixed_order = false},
                          host_backend),
        factory_(std::move(factory)),
        group_name_(std::move(group)) {}

  void require_summable(const at::Tensor& flat) override {
    if (flat.device().type() != factory_.device) return inner().require_summable(flat);
    if (const auto group = group_if_connected()) return require_device(*group, flat.device());
    throw UsageError("start_all_reduce: this communicator has allocated no memory on " + flat.device().str() +
                     ". Allocate the tensor with GradientCommunicator::allocate(), which connects the ranks.");
  }
  std::unique_ptr<PendingAllReduce> start_all_reduce(const Operation& operation, const at::Tensor& flat,
                                                     const std::shared_ptr<const WireCodec>& codec) override {
    if (flat.device().type() != factory_.device) return inner().start_all_reduce(operation, flat, codec);
    auto group = group_if_connected();
    group->throw_if_failed();
    return std::make_unique<DeviceAllReduce>(std::move(group), operation, flat);
  }
  // All operations begin with such an exchange, so that each of them throws after a failure on the device.
  std::unique_ptr<PendingAllGather> start_small_all_gather(const Operation& operation,
                                                           std::span<const std::byte> input) override {
    if (const auto group = group_if_connected()) group->throw_if_failed();
    return inner().start_small_all_gather(operation, input);
  }

  void all_reduce(const Operation& operation, const at::Tensor& flat, ReduceOp op) override {
    if (!serves(flat)) return inner().all_reduce(operation, flat, op);
    on_device::all_reduce(*connect(operation, flat.device()), operation, flat, op);
  }
  void all_gather(const Operation& operation, const at::Tensor& output, const at::Tensor& input) override {
    if (!serves(input)) return inner().all_gather(operation, output, input);
    on_device::all_gather(*connect(operation, input.device()), operation, output, input);
  }
  void reduce_scatter(const Operation& operation, const at::Tensor& output, const at::Tensor& input,
                      ReduceOp op) override {
    if (!serves(input)) return inner().reduce_scatter(operation, output, input, op);
    on_device::reduce_scatter(*connect(operation, input.device()), operation, output, input, op);
  }
  void all_to_all(const Operation& operation, const at::Tensor& output, const at::Tensor& input) override {
    if (!serves(input)) return inner().all_to_all(operation, output, input);
    on_device::all_to_all(*connect(operation, input.device()), operation, output, input);
  }
  void broadcast(const Operation& operation, const at::Tensor& tensor, int root) override {
    if (!serves(tensor)) return inner().broadcast(operation, tensor, root);
    on_device::broadcast(*connect(operation, tensor.device()), operation, tensor, root);
  }
  void all_to_all_v(const Operation& operation, const std::vector<at::Tensor>& outputs,
                    const std::vector<at::Tensor>& inputs, std::size_t longest) override {
    if (!serves(inputs.front())) return inner().all_to_all_v(operation, outputs, inputs, longest);
    on_device::all_to_all_v(*connect(operation, inputs.front().device()), operation, outputs, inputs);
  }

  at::Tensor allocate(const Operation& operation, std::int64_t bytes, at::Device device) override {
    if (device.type() != factory_.device) return inner().allocate(operation, bytes, device);
    connect(operation, device);
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
    const std::lock_guard lock(mutex_);
    for (const auto& group : {group_, connecting_}) {
      if (group) group->abort();
    }
  }

 private:
  /// True if the collectives on `tensor`, apart from all-reduces of gradients, run on the device.
  bool serves(const at::Tensor& tensor) const {
    return traits().device_collectives && tensor.device().type() == factory_.device;
  }

  std::shared_ptr<DeviceGroup> group_if_connected() {
    const std::lock_guard lock(mutex_);
    return group_;
  }

  static void require_device(const DeviceGroup& group, at::Device device) {
    if (group.device() == device) return;
    throw UsageError("a tensor is on " + device.str() + ", but this communicator uses " + group.device().str() +
                     ": use one device for all tensors of a rank.");
  }

  /// Connects the ranks in the first call, in which all ranks take part. (In a backward pass, ranks that use their
  /// groups in different orders would wait for each other.) If it fails on some rank, throws on all ranks.
  std::shared_ptr<DeviceGroup> connect(const Operation& operation, at::Device device) {
    if (auto group = group_if_connected()) {
      require_device(*group, device);
      return group;
    }
    std::shared_ptr<DeviceGroup> group;
    // Compared before the first collective, in which the other ranks would wait for a rank that has failed.
    throw_if_any_failed(operation, problem_of(device, [&] {
                          devices::require_available(device);
                          group = std::make_shared<DeviceGroup>(factory_.make(group_name_, rank(), size(), device),
                                                                device, shared_inner());
                        }));
    {
      const std::lock_guard lock(mutex_);
      connecting_ = group;
    }
    throw_if_any_failed(operation, problem_of(device, [&] {
                          const at::Tensor zero = at::zeros({1}, at::TensorOptions(at::kFloat).device(device));
                          group->run_on_current_stream(
                              operation, {zero}, [&](c10d::Backend& backend) { return start_sum(backend, zero); });
                        }));
    const std::lock_guard lock(mutex_);
    connecting_ = nullptr;
    group_ = group;
    return group;
  }

  static std::string problem_of(at::Device device, const std::function<void()>& step) {
    try {
      step();
      return "";
    } catch (const std::exception& error) {
      return device.str() + ": " + first_line(error.what());
    }
  }

  void throw_if_any_failed(const Operation& operation, const std::string& problem) {
    const std::byte flag{!problem.empty()};
    const auto flags = inner().bootstrap_all_gather(operation, std::span(&flag, 1));
    const auto failed = std::ranges::find(flags, std::byte{1});
    if (failed == flags.end()) return;
    {
      const std::lock_guard lock(mutex_);
      if (const auto group = std::exchange(connecting_, nullptr)) group->abort();
    }
    const auto failed_rank = static_cast<int>(failed - flags.begin());
    constexpr std::int64_t longest = 256;
    const at::Tensor texts = at::zeros({size(), longest}, at::kByte);
    const at::Tensor text = at::zeros({longest}, at::kByte);
    std::memcpy(text.data_ptr(), problem.data(), std::min<std::size_t>(problem.size(), longest - 1));
    inner().all_gather(operation, texts, text);
    throw PeerError("Connecting over " + factory_.name + " failed on rank " + std::to_string(failed_rank) + ", " +
                        static_cast<const char*>(texts.select(0, failed_rank).const_data_ptr()) +
                        ". The backend staged does without it.",
                    {failed_rank});
  }

  const C10dBackendFactory factory_;
  const std::string group_name_;
  std::mutex mutex_;
  std::shared_ptr<DeviceGroup> group_;
  std::shared_ptr<DeviceGroup> connecting_;  // its first collective has not returned
};

}  // namespace

std::shared_ptr<Backend> make_device_backend(const std::shared_ptr<Backend>& host_backend, C10dBackendFactory factory,
                                             std::string group) {
  return std::make_shared<DeviceBackend>(host_backend, std::move(factory), std::move(group));
}

}  // namespace tutti::comm
