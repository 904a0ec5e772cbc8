#include "local_sgd/extra_state.h"

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <set>
#include <span>
#include <utility>
#include <variant>

#include "device/devices.h"
#include "device/host_copy.h"
#include "sync/replicate.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/internal_call.h"
#include "tutti/detail/core/crc32c.h"
#include "tutti/detail/optim/optimizer_state.h"

namespace tutti::local_sgd {
namespace {

constexpr const char* state_prefix = "state.";

void require_usable(const NamedParameter& buffer) {
  const at::Tensor& tensor = buffer.tensor;
  const std::string who = "Local SGD: buffer '" + buffer.name + "' ";
  if (tensor.is_meta()) throw UsageError(who + "is on the meta device, which has no values");
  if (tensor.layout() != at::kStrided || tensor.is_complex() || tensor.is_quantized()) {
    throw UsageError(who +
                     "is sparse, complex or quantized, which cannot be combined: set StateSync::buffers to local");
  }
  if (devices::is_accelerator(tensor.device()) && !tensor.is_non_overlapping_and_dense()) {
    throw UsageError(who + "is not dense: make it contiguous()");
  }
}

/// A name for each of the optimizer's parameters, in the order of its groups.
std::vector<std::string> names_in(const torch::optim::Optimizer& optimizer, const TrainedParameters& parameters) {
  std::map<const c10::TensorImpl*, std::string> by_tensor;
  for (std::size_t i = 0; i < parameters.count(); ++i) {
    const NamedParameter& parameter = parameters[static_cast<int>(i)];
    by_tensor[parameter.tensor.unsafeGetTensorImpl()] = parameter.name;
  }
  std::vector<std::string> names;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto known = by_tensor.find(parameter.unsafeGetTensorImpl());
      names.push_back(known != by_tensor.end() ? known->second : "frozen." + std::to_string(names.size()));
      if (known == by_tensor.end() && parameter.requires_grad()) {
        throw UsageError("Local SGD: the optimizer has a parameter that the model does not have");
      }
    }
  }
  return names;
}

}  // namespace

ExtraState::ExtraState(const std::vector<NamedParameter>& buffers, std::shared_ptr<torch::optim::Optimizer> optimizer,
                       const TrainedParameters& parameters, const StateSync& state_sync)
    : state_sync_(state_sync), any_double_(parameters.any_double()) {
  std::set<const c10::TensorImpl*> seen;
  for (const NamedParameter& buffer : buffers) {
    if (state_sync.buffers == BufferRule::local || !buffer.tensor.defined()) continue;
    if (!seen.insert(buffer.tensor.unsafeGetTensorImpl()).second) continue;
    require_usable(buffer);
    (buffer.tensor.is_floating_point() ? floating_ : integer_).push_back(buffer.tensor);
    any_double_ = any_double_ || buffer.tensor.scalar_type() == at::kDouble;
  }
  if (state_sync.momentum == MomentumRule::local) return;
  if (!optimizer) throw UsageError("Local SGD: averaging momentum needs the optimizer");
  names_ = names_in(*optimizer, parameters);
  if (!has_parameter_names(*optimizer)) {
    throw UsageError("Local SGD: cannot average the momentum of this optimizer: set StateSync::momentum to local");
  }
  optimizer_ = std::move(optimizer);
}

// Returns the optimizer's own tensors. `check` is a checksum of their names, because ranks must hold the same tensors.
std::vector<at::Tensor> ExtraState::momentum(std::uint64_t& check) const {
  std::vector<at::Tensor> tensors;
  std::uint32_t sum = 0;
  const StateDict state = optimizer_state(*optimizer_, names_);
  for (const auto& [key, value] : state.values()) {
    const auto* tensor = std::get_if<at::Tensor>(&value);
    if (tensor == nullptr || !key.starts_with(state_prefix) || !tensor->is_floating_point()) continue;
    tensors.push_back(*tensor);
    sum = crc32c(std::as_bytes(std::span(key)), sum);
  }
  check = sum;
  return tensors;
}

void ExtraState::mean_of(const std::vector<at::Tensor>& tensors, at::ScalarType dtype, std::uint64_t check,
                         const Mean& mean) {
  std::vector<at::Tensor> chosen;
  for (const at::Tensor& tensor : tensors) {
    if ((tensor.scalar_type() == at::kDouble) == (dtype == at::kDouble)) chosen.push_back(tensor);
  }
  const at::Tensor flat = sync::flatten(chosen, dtype);
  mean(flat, check);
  sync::unflatten_into(flat, chosen);
}

void ExtraState::read(const Communicator& group) {
  if (group.size() == 1) return;
  staged_.clear();
  on_host_ = {.floating = floating_, .integer = integer_, .momentum = {}};
  if (optimizer_) on_host_.momentum = momentum(on_host_.momentum_check);
  for (std::vector<at::Tensor>* tensors : {&on_host_.floating, &on_host_.integer, &on_host_.momentum}) {
    for (at::Tensor& tensor : *tensors) {
      if (devices::is_accelerator(tensor.device())) staged_.push_back({.tensor = tensor, .copy = {}, .version = 0});
    }
  }
  if (staged_.empty()) return;
  std::vector<at::Tensor> originals;
  for (const Staged& staged : staged_) originals.push_back(staged.tensor);
  const std::vector<at::Tensor> copies = devices::copies_on_host(originals);
  std::size_t next = 0;
  for (std::vector<at::Tensor>* tensors : {&on_host_.floating, &on_host_.integer, &on_host_.momentum}) {
    for (at::Tensor& tensor : *tensors) {
      if (!devices::is_accelerator(tensor.device())) continue;
      Staged& staged = staged_[next];
      tensor = staged.copy = copies[next++];
      staged.version = staged.copy._version();
    }
  }
}

void ExtraState::write() {
  for (const Staged& staged : staged_) {
    if (staged.copy._version() != staged.version) staged.tensor.copy_(staged.copy, /*non_blocking=*/true);
  }
  staged_.clear();
  on_host_ = {};
}

std::int64_t ExtraState::combine(const Communicator& group, const Mean& mean) const {
  if (group.size() == 1) return 0;
  const CallOptions call = comm::internal_call("Local SGD buffers");
  std::int64_t bytes = 0;
  std::vector<at::Tensor> averaged;
  if (state_sync_.buffers == BufferRule::average) {
    averaged = on_host_.floating;
    if (!on_host_.integer.empty()) {
      const at::Tensor flat = sync::flatten(on_host_.integer, at::kLong);
      group.all_reduce(flat, ReduceOp::max, call).wait();
      sync::unflatten_into(flat, on_host_.integer);
      bytes += 2 * static_cast<std::int64_t>(flat.nbytes()) * (group.size() - 1) / group.size();
    }
  } else {
    for (const std::vector<at::Tensor>* tensors : {&on_host_.floating, &on_host_.integer}) {
      if (tensors->empty()) continue;
      // Doubles keep their precision; integers are combined exactly.
      const at::ScalarType dtype = tensors == &on_host_.integer ? at::kLong : any_double_ ? at::kDouble : at::kFloat;
      const at::Tensor flat = sync::flatten(*tensors, dtype);
      group.broadcast(flat, 0, call).wait();
      sync::unflatten_into(flat, *tensors);
      if (group.rank() == 0) bytes += static_cast<std::int64_t>(flat.nbytes()) * (group.size() - 1);
    }
  }
  averaged.insert(averaged.end(), on_host_.momentum.begin(), on_host_.momentum.end());
  if (averaged.empty() && !optimizer_) return bytes;
  mean_of(averaged, at::kFloat, on_host_.momentum_check, mean);
  if (any_double_) mean_of(averaged, at::kDouble, on_host_.momentum_check, mean);
  return bytes;
}

}  // namespace tutti::local_sgd
