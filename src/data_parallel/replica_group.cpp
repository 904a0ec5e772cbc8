#include "data_parallel/replica_group.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <set>
#include <utility>

#include "device/devices.h"
#include "device/error_text.h"
#include "tutti/core/error.h"

namespace tutti::data_parallel {
namespace {

/// Restores the random generator, because Cloneable::reset() draws random numbers for the new module.
class KeepGenerator {
 public:
  KeepGenerator() : generator_(at::detail::getDefaultCPUGenerator()) {
    const std::lock_guard lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~KeepGenerator() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state_);
  }
  KeepGenerator(const KeepGenerator&) = delete;
  KeepGenerator& operator=(const KeepGenerator&) = delete;

 private:
  at::Generator generator_;
  at::Tensor state_;
};

void check_structure(const torch::nn::Module& module, const torch::nn::Module& replica) {
  if (module.named_parameters().keys() == replica.named_parameters().keys() &&
      module.named_buffers().keys() == replica.named_buffers().keys() &&
      module.named_modules().keys() == replica.named_modules().keys()) {
    return;
  }
  throw UsageError("DataParallel: a replica of " + module.name() +
                   " has other parameters, buffers or children than the module: register the same ones in reset()");
}

std::shared_ptr<torch::nn::Module> make_replica(const torch::nn::Module& module, const MakeReplica& make) {
  std::shared_ptr<torch::nn::Module> replica;
  try {
    replica = make();
  } catch (const std::exception& error) {
    throw UsageError(
        "DataParallel: " + module.name() +
        " cannot be copied: derive it from torch::nn::Cloneable, or pass DataParallel a function that makes "
        "another one. (" +
        error_text(error) + ")");
  }
  if (replica == nullptr) throw UsageError("DataParallel: the copy of " + module.name() + " has another type");
  if (replica.get() == &module)
    throw UsageError("DataParallel: the copy of " + module.name() + " is the module itself");
  check_structure(module, *replica);
  return replica;
}

/// `replica` uses the memory of `original`. They share a version counter, so that autograd detects a parameter that
/// changes between forward and backward.
void share(at::Tensor replica, const at::Tensor& original) {
  replica.set_data(original.detach());
  torch::autograd::impl::set_version_counter(replica, torch::autograd::impl::version_counter(original));
}

/// Makes `replica` a copy of `original` on `device`. The copy has memory of its own, because an earlier forward may
/// still need the previous one for its backward.
/// Does not compare values, because that would wait for the accelerator.
void copy_to_device(at::Tensor replica, const at::Tensor& original, at::Device device) {
  replica.set_data(original.detach().to(device, original.scalar_type(), /*non_blocking=*/true, /*copy=*/true));
}

/// Grows with each write to `buffer` that autograd tracks.
std::uint64_t version_of(const at::Tensor& buffer) {
  return buffer.is_inference() ? 0 : buffer._version();
}

/// Copies only if the values differ: an earlier forward may still need the buffer for its backward. Autograd checks
/// that if the copy is `tracked`.
void copy_buffer(at::Tensor replica, const at::Tensor& original, bool tracked) {
  if (replica.sizes() != original.sizes() || replica.scalar_type() != original.scalar_type() ||
      replica.device() != original.device()) {
    replica.set_data(original.detach().clone());
  } else if (!replica.equal(original)) {
    std::optional<at::AutoDispatchBelowADInplaceOrView> untracked;
    if (!tracked) untracked.emplace();
    replica.copy_(original);
  }
}

void set_training(torch::nn::Module& replica, const torch::nn::Module& original) {
  const auto originals = original.modules();
  const auto copies = replica.modules();
  // train() sets all children. Parents come first, so each module ends with its own mode.
  for (std::size_t i = 0; i < copies.size(); ++i) copies[i]->train(originals[i]->is_training());
}

/// Copies this thread's modes to another thread. at::ThreadLocalState lacks autocast's dtypes in some releases.
class Modes {
 public:
  explicit Modes(std::vector<c10::Stream> streams) : streams_(std::move(streams)) {
    add_autocast(at::kCPU);
    if (const auto type = devices::accelerator_type()) add_autocast(*type);
  }

  template <typename Task>
  void run(const Task& task) const {
    const at::ThreadLocalStateGuard guard(state_);
    for (const auto& [type, dtype] : dtypes_) at::autocast::set_autocast_dtype(type, dtype);
    const bool before = at::autocast::is_autocast_cache_enabled();
    at::autocast::set_autocast_cache_enabled(cache_enabled_);
    const c10::MultiStreamGuard streams(streams_);
    task();
    at::autocast::set_autocast_cache_enabled(before);
  }

 private:
  void add_autocast(at::DeviceType type) {
    if (at::autocast::is_autocast_available(type)) dtypes_.emplace_back(type, at::autocast::get_autocast_dtype(type));
  }

  at::ThreadLocalState state_;
  std::vector<std::pair<at::DeviceType, at::ScalarType>> dtypes_;
  std::vector<c10::Stream> streams_;
  bool cache_enabled_ = at::autocast::is_autocast_cache_enabled();
};

int replicas_of(const DataParallelOptions& options) {
  if (options.replicas < 1) {
    throw UsageError("DataParallel: " + std::to_string(options.replicas) + " replicas: use at least 1");
  }
  if (options.devices.empty()) return options.replicas;
  const int devices = static_cast<int>(options.devices.size());
  if (options.replicas != DataParallelOptions{}.replicas && options.replicas != devices) {
    throw UsageError("DataParallel: " + std::to_string(options.replicas) + " replicas and " + std::to_string(devices) +
                     " devices: set one of them");
  }
  return devices;
}

at::Device checked_device(at::Device device) {
  devices::require_available(device);
  if (devices::is_accelerator(device) && !device.has_index()) device.set_index(at::accelerator::getDeviceIndex());
  return device;
}

void require_all_on(at::Device device, const torch::nn::Module& module) {
  const auto require = [&](const auto& items) {
    for (const auto& item : items) {
      if (!item.value().defined() || item.value().device() == device) continue;
      throw UsageError("DataParallel: '" + item.key() + "' of " + module.name() + " is on " +
                       item.value().device().str() + ", and the first of the devices is " + device.str() +
                       ": move the module there first");
    }
  };
  require(module.named_parameters());
  require(module.named_buffers());
}

[[noreturn]] void throw_named(const std::exception_ptr& failure, int replica, int count, const std::string& doing) {
  std::string text = "DataParallel: replica " + std::to_string(replica);
  text += " of " + std::to_string(count);
  text += " failed in " + doing;
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    std::throw_with_nested(Error(text + ": " + error_text(error)));
  } catch (...) {
    std::throw_with_nested(Error(text));
  }
}

}  // namespace

ReplicaGroup::ReplicaGroup(std::shared_ptr<torch::nn::Module> module, const MakeReplica& make,
                           const DataParallelOptions& options)
    : module_(std::move(module)) {
  if (module_ == nullptr) throw UsageError("DataParallel: the module is null");
  const int replicas = replicas_of(options);
  for (const at::Device device : options.devices) devices_.push_back(checked_device(device));
  if (!devices_.empty()) require_all_on(devices_.front(), *module_);
  const KeepGenerator keep;
  for (int i = 0; i < replicas; ++i) {
    replicas_.push_back({make_replica(*module_, make), std::make_unique<comm::Worker>()});
    // Starts the thread here, because run() could not end the tasks of other threads if this failed.
    replicas_.back().worker->submit([] {});
  }
}

void ReplicaGroup::refresh(int count) {
  const at::NoGradGuard no_grad;
  const auto parameters = module_->parameters();
  const auto buffers = module_->buffers();
  accelerators_.clear();
  for (int index = 0; index < count; ++index) {
    auto& copy = replica(index);
    check_structure(*module_, copy);
    auto copied_parameters = copy.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const at::Device place = device(index).value_or(parameters[i].device());
      if (place == parameters[i].device()) {
        share(copied_parameters[i], parameters[i]);
      } else {
        copy_to_device(copied_parameters[i], parameters[i], place);
      }
      copied_parameters[i].set_requires_grad(parameters[i].requires_grad());
      add_accelerator(place);
    }
    auto copied_buffers = copy.buffers();
    auto& versions = replicas_[static_cast<std::size_t>(index)].buffer_versions;
    versions.resize(buffers.size());
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      const at::Device place = device(index).value_or(buffers[i].device());
      if (index == 0) {
        share(copied_buffers[i], buffers[i]);
      } else if (devices::is_accelerator(place)) {
        copy_to_device(copied_buffers[i], buffers[i], place);
      } else {
        // Autograd does not track what batch norm writes, because its backward does not need the previous statistics.
        const auto versions_now = [&] { return version_of(copied_buffers[i]) + version_of(buffers[i]); };
        copy_buffer(copied_buffers[i], buffers[i], versions_now() != versions[i]);
        versions[i] = versions_now();
      }
      add_accelerator(place);
    }
    set_training(copy, *module_);
  }
}

void ReplicaGroup::add_accelerator(at::Device device) {
  if (!devices::is_accelerator(device)) return;
  if (std::ranges::find(accelerators_, device) == accelerators_.end()) accelerators_.push_back(device);
}

std::optional<at::Device> ReplicaGroup::accelerator(int index) const {
  if (accelerators_.empty()) return std::nullopt;
  return device(index).value_or(accelerators_.front());
}

std::vector<c10::Stream> ReplicaGroup::current_streams() const {
  std::vector<c10::Stream> streams;
  for (const at::Device device : accelerators_) {
    streams.push_back(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  return streams;
}

std::vector<SharedParameter> ReplicaGroup::shared_parameters(int index) const {
  const auto parameters = module_->parameters();
  const auto copies = replica(index).parameters();
  std::vector<SharedParameter> shared;
  std::set<const at::TensorImpl*> seen;  // tied parameters have several names
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].requires_grad() || !seen.insert(copies[i].unsafeGetTensorImpl()).second) continue;
    shared.push_back({parameters[i], copies[i]});
  }
  return shared;
}

void ReplicaGroup::run(int count, const std::string& doing, const std::function<void(int)>& task) const {
  const Modes modes(current_streams());
  std::vector<std::shared_ptr<comm::WorkState>> states;
  for (int index = 0; index < count; ++index) {
    auto& worker = *replicas_[static_cast<std::size_t>(index)].worker;
    states.push_back(worker.submit([&, index, place = accelerator(index)] {
      const c10::OptionalDeviceGuard current_device(place);
      modes.run([&] { task(index); });
    }));
  }
  std::vector<std::exception_ptr> failures(states.size());
  for (std::size_t i = 0; i < states.size(); ++i) {
    try {
      states[i]->wait();
    } catch (...) {
      failures[i] = std::current_exception();
    }
  }
  for (std::size_t i = 0; i < failures.size(); ++i) {
    if (failures[i]) throw_named(failures[i], static_cast<int>(i), count, doing);
  }
}

}  // namespace tutti::data_parallel
