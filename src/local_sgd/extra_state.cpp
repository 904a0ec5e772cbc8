#include "local_sgd/extra_state.h"

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <set>
#include <span>
#include <utility>
#include <variant>

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
  if (!tensor.device().is_cpu()) throw UsageError(who + "is on " + tensor.device().str() + ", not in CPU memory");
  if (tensor.layout() != at::kStrided || tensor.is_complex() || tensor.is_quantized()) {
    throw UsageError(who +
                     "is sparse, complex or quantized, which cannot be combined: set StateSync::buffers to local");
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

std::int64_t ExtraState::combine(const Communicator& group, const Mean& mean) const {
  if (group.size() == 1) return 0;
  const CallOptions call = comm::internal_call("Local SGD buffers");
  std::int64_t bytes = 0;
  std::vector<at::Tensor> averaged;
  if (state_sync_.buffers == BufferRule::average) {
    averaged = floating_;
    if (!integer_.empty()) {
      const at::Tensor flat = sync::flatten(integer_, at::kLong);
      group.all_reduce(flat, ReduceOp::max, call).wait();
      sync::unflatten_into(flat, integer_);
      bytes += 2 * static_cast<std::int64_t>(flat.nbytes()) * (group.size() - 1) / group.size();
    }
  } else {
    for (const std::vector<at::Tensor>* tensors : {&floating_, &integer_}) {
      if (tensors->empty()) continue;
      // Doubles keep their precision; integers are combined exactly.
      const at::ScalarType dtype = tensors == &integer_ ? at::kLong : any_double_ ? at::kDouble : at::kFloat;
      const at::Tensor flat = sync::flatten(*tensors, dtype);
      group.broadcast(flat, 0, call).wait();
      sync::unflatten_into(flat, *tensors);
      if (group.rank() == 0) bytes += static_cast<std::int64_t>(flat.nbytes()) * (group.size() - 1);
    }
  }
  std::uint64_t check = 0;
  if (optimizer_) {
    for (const at::Tensor& tensor : momentum(check)) averaged.push_back(tensor);
  } else if (averaged.empty()) {
    return bytes;
  }
  mean_of(averaged, at::kFloat, check, mean);
  if (any_double_) mean_of(averaged, at::kDouble, check, mean);
  return bytes;
}

}  // namespace tutti::local_sgd
