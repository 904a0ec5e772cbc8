#include "comm/device/engine.h"

#include <ATen/ops/zeros.h>

#include <mutex>
#include <optional>
#include <utility>

#include "comm/device/side_stream.h"
#include "comm/engine/forwarding_engine.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

/// Sums on one device, among the ranks of one group.
class DeviceGroup {
 public:
  DeviceGroup(c10::intrusive_ptr<c10d::Backend> backend, at::Device device)
      : backend_(std::move(backend)), side_(device) {}

  c10::intrusive_ptr<c10d::Work> start(const at::Tensor& flat) const {
    std::vector<at::Tensor> tensors{flat};
    c10d::AllreduceOptions options;
    options.asyncOp = true;
    return backend_->allreduce(tensors, options);
  }
  const SideStream& side() const { return side_; }
  void abort() const { backend_->abort(); }

 private:
  c10::intrusive_ptr<c10d::Backend> backend_;
  SideStream side_;
};

/// What c10d throws says nothing of ranks: the channel finds out who is at fault.
template <typename Step>
auto as_transfer(const Step& step) {
  try {
    return step();
  } catch (const std::exception& error) {
    throw TransferError(TransferError::Kind::closed, {}, error.what());
  }
}

class DeviceSum final : public PendingSum {
 public:
  DeviceSum(std::shared_ptr<const DeviceGroup> group, at::Tensor flat, int size)
      : group_(std::move(group)),
        flat_(std::move(flat)),
        size_(size),
        work_(as_transfer([&] { return group_->start(flat_); })) {}

  void reduce(double scale) override {
    as_transfer([&] {
      group_->side().run([&] {
        // On a device this waits for nothing: the side stream does.
        work_->wait();
        if (scale != 1) flat_.mul_(scale);
      });
      done_.emplace(group_->side().mark());
    });
  }
  void finish() override {}
  void join() const override { done_->join(); }
  // In a ring every rank passes on all slices but its own, twice.
  std::int64_t bytes_sent() const override {
    return 2 * static_cast<std::int64_t>(flat_.nbytes()) * (size_ - 1) / size_;
  }

 private:
  std::shared_ptr<const DeviceGroup> group_;
  at::Tensor flat_;
  int size_;
  c10::intrusive_ptr<c10d::Work> work_;
  std::optional<StreamMark> done_;
};

class DeviceEngine final : public ForwardingEngine {
 public:
  DeviceEngine(std::shared_ptr<Engine> host, DeviceBackend backend, std::string group)
      : ForwardingEngine(std::move(host)),
        backend_(std::move(backend)),
        group_name_(std::move(group)),
        name_(backend_.name + " + " + below().name()) {}

  const std::string& name() const override { return name_; }

  std::unique_ptr<PendingSum> start_sum(const Operation& operation, const at::Tensor& flat,
                                        const std::shared_ptr<const WireCodec>& codec) override {
    const auto group = group_of(flat);
    return group ? std::make_unique<DeviceSum>(group, flat, size()) : below().start_sum(operation, flat, codec);
  }

  bool sums_on(at::DeviceType device) const override { return device == backend_.device; }

  // A first sum connects the ranks, here where all of them are: in a backward pass, ranks that come to their groups in
  // different orders would wait for one another.
  at::Tensor allocate_on(const Operation&, at::Device device, std::int64_t bytes) override {
    const std::lock_guard lock(mutex_);
    try {
      if (!group_) {
        auto group = std::make_shared<DeviceGroup>(backend_.make(group_name_, rank(), size()), device);
        group->start(at::zeros({1}, at::TensorOptions(at::kFloat).device(device)))->wait();
        group_ = std::move(group);
      }
    } catch (const std::exception& error) {
      throw PeerFailure("Connecting over " + backend_.name + " on " + device.str() + " failed: " + error.what(), {});
    }
    return at::zeros({bytes}, at::TensorOptions(at::kByte).device(device));
  }

  std::shared_ptr<Engine> connect_again(const std::vector<int>& members, const std::string& name,
                                        std::chrono::milliseconds timeout) override {
    return make_device_engine(below().connect_again(members, name, timeout), backend_, name);
  }
  std::shared_ptr<Engine> duplicate(const std::string& name, std::chrono::milliseconds timeout) override {
    return make_device_engine(below().duplicate(name, timeout), backend_, name);
  }
  void close() noexcept override {
    below().close();
    try {
      const std::lock_guard lock(mutex_);
      if (group_) group_->abort();
    } catch (const std::exception&) {
      // The ranks part in any case; what c10d has to say about it helps nobody.
    }
  }

 private:
  std::shared_ptr<const DeviceGroup> group_of(const at::Tensor& flat) {
    const std::lock_guard lock(mutex_);
    return flat.device().type() == backend_.device ? group_ : nullptr;
  }

  DeviceBackend backend_;
  std::string group_name_;
  std::string name_;
  std::mutex mutex_;
  std::shared_ptr<const DeviceGroup> group_;
};

}  // namespace

std::shared_ptr<Engine> make_device_engine(std::shared_ptr<Engine> host, DeviceBackend backend, std::string group) {
  return std::make_shared<DeviceEngine>(std::move(host), std::move(backend), std::move(group));
}

}  // namespace tutti::comm
