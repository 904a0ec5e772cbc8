#include "data_parallel/replica_group.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <array>
#include <exception>
#include <mutex>
#include <set>
#include <utility>

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

std::string text_of(const std::exception& error) {
  const auto* from_libtorch = dynamic_cast<const c10::Error*>(&error);
  return from_libtorch != nullptr ? from_libtorch->what_without_backtrace() : error.what();
}

template <typename Items>
bool same_keys(const Items& first, const Items& second) {
  return first.keys() == second.keys();
}

void check_structure(const torch::nn::Module& module, const torch::nn::Module& replica) {
  if (same_keys(module.named_parameters(), replica.named_parameters()) &&
      same_keys(module.named_buffers(), replica.named_buffers()) &&
      same_keys(module.named_modules(), replica.named_modules())) {
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
        text_of(error) + ")");
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

/// Copies only if the values differ: an earlier forward may still need the buffer for its backward.
void copy_buffer(at::Tensor replica, const at::Tensor& original) {
  if (replica.sizes() != original.sizes() || replica.scalar_type() != original.scalar_type() ||
      replica.device() != original.device()) {
    replica.set_data(original.detach().clone());
  } else if (!replica.equal(original)) {
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
  template <typename Task>
  void run(const Task& task) const {
    const at::ThreadLocalStateGuard guard(state_);
    for (std::size_t i = 0; i < devices.size(); ++i) at::autocast::set_autocast_dtype(devices[i], dtypes_[i]);
    const bool before = at::autocast::is_autocast_cache_enabled();
    at::autocast::set_autocast_cache_enabled(cache_enabled_);
    task();
    at::autocast::set_autocast_cache_enabled(before);
  }

 private:
  static constexpr std::array devices{at::kCPU, at::kCUDA};

  at::ThreadLocalState state_;
  std::array<at::ScalarType, 2> dtypes_{at::autocast::get_autocast_dtype(devices[0]),
                                        at::autocast::get_autocast_dtype(devices[1])};
  bool cache_enabled_ = at::autocast::is_autocast_cache_enabled();
};

[[noreturn]] void throw_named(const std::exception_ptr& failure, int replica, int count, const std::string& doing) {
  std::string text = "DataParallel: replica " + std::to_string(replica);
  text += " of " + std::to_string(count);
  text += " failed in " + doing;
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    std::throw_with_nested(Error(text + ": " + text_of(error)));
  } catch (...) {
    std::throw_with_nested(Error(text));
  }
}

}  // namespace

ReplicaGroup::ReplicaGroup(std::shared_ptr<torch::nn::Module> module, const MakeReplica& make, int replicas)
    : module_(std::move(module)) {
  if (module_ == nullptr) throw UsageError("DataParallel: the module is null");
  if (replicas < 1) throw UsageError("DataParallel: " + std::to_string(replicas) + " replicas: use at least 1");
  const KeepGenerator keep;
  for (int i = 0; i < replicas; ++i) {
    replicas_.push_back({make_replica(*module_, make), std::make_unique<comm::Worker>()});
  }
}

void ReplicaGroup::refresh(int count) const {
  const at::NoGradGuard no_grad;
  const auto parameters = module_->parameters();
  const auto buffers = module_->buffers();
  for (int index = 0; index < count; ++index) {
    auto& copy = replica(index);
    check_structure(*module_, copy);
    auto copied_parameters = copy.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      share(copied_parameters[i], parameters[i]);
      copied_parameters[i].set_requires_grad(parameters[i].requires_grad());
    }
    auto copied_buffers = copy.buffers();
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      index == 0 ? share(copied_buffers[i], buffers[i]) : copy_buffer(copied_buffers[i], buffers[i]);
    }
    set_training(copy, *module_);
  }
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
  const Modes modes;
  std::vector<std::shared_ptr<comm::WorkState>> states;
  for (int index = 0; index < count; ++index) {
    auto& worker = *replicas_[static_cast<std::size_t>(index)].worker;
    states.push_back(worker.submit([&, index] { modes.run([&] { task(index); }); }));
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
