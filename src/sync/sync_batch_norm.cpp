#include "tutti/sync/sync_batch_norm.h"

#include <ATen/Functions.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "device/devices.h"
#include "sync/batch_statistics.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/internal_call.h"

namespace tutti {
namespace {

using sync::BatchStatistics;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Half precision is computed in float, as LibTorch does.
at::ScalarType wide(at::ScalarType dtype) {
  return at::toOpMathType(dtype);
}

std::optional<at::Tensor> optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

/// Shaped to be broadcast along the channels of `input`.
at::Tensor along_channels(const at::Tensor& values, const at::Tensor& input) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = -1;
  return values.to(wide(input.scalar_type())).view(shape);
}

/// Holds the communicator in a node of the graph.
struct CommunicatorHolder : torch::CustomClassHolder {
  explicit CommunicatorHolder(Communicator ranks) : communicator(std::move(ranks)) {}
  Communicator communicator;
};

/// Normalizes by the statistics of all ranks. These depend on all inputs, so the gradient needs sums over all ranks.
class Normalize : public torch::autograd::Function<Normalize> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, const BatchStatistics& statistics, double eps,
                            const Communicator& communicator) {
    const auto dtype = wide(input.scalar_type());
    const at::Tensor mean = statistics.mean.to(dtype);
    const at::Tensor variance = statistics.variance.to(dtype);
    context->save_for_backward({input, weight.value_or(at::Tensor()), mean, variance});
    context->saved_data["count"] = statistics.count;
    context->saved_data["eps"] = eps;
    context->saved_data["communicator"] =
        c10::IValue::make_capsule(c10::make_intrusive<CommunicatorHolder>(communicator));
    if (input.numel() == 0) return at::empty_like(input);
    const auto widened = [&](const std::optional<at::Tensor>& tensor) {
      return tensor ? std::optional(tensor->to(dtype)) : std::nullopt;
    };
    const auto output = at::native_batch_norm(input.to(dtype), widened(weight), widened(bias), mean, variance,
                                              /*training=*/false, /*momentum=*/0.0, eps);
    return std::get<0>(output).to(input.scalar_type());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    if (at::GradMode::is_enabled()) {
      throw UsageError("SyncBatchNorm: backward does not support create_graph: its gradients are sums over ranks");
    }
    const auto saved = context->get_saved_variables();
    const Pass pass{.input = saved[0],
                    .weight = saved[1],
                    .mean = saved[2],
                    .variance = saved[3],
                    .eps = context->saved_data["eps"].toDouble(),
                    .gradient = gradients[0]};
    const auto [weight_gradient, bias_gradient] = local_sums(pass);
    variable_list result(6);
    if (context->needs_input_grad(0)) {
      const auto holder = context->saved_data["communicator"].toCapsule();
      // Sums over all ranks of output gradients, and of output gradients times normalized inputs.
      const at::Tensor sums = at::cat({bias_gradient, weight_gradient}).to(devices::widest_float(pass.input.device()));
      static_cast<const CommunicatorHolder&>(*holder)
          .communicator.all_reduce(sums, ReduceOp::sum, comm::internal_call("SyncBatchNorm"))
          .wait();
      result[0] = input_gradient(pass, sums / context->saved_data["count"].toInt());
    }
    if (pass.weight.defined()) {
      result[1] = weight_gradient.to(pass.weight.scalar_type());
      result[2] = bias_gradient.to(pass.weight.scalar_type());
    }
    return result;
  }

 private:
  struct Pass {
    at::Tensor input, weight, mean, variance;
    double eps;
    at::Tensor gradient;  // of the output
  };

  /// Gradients of weight and bias from this rank's samples. The reducer synchronizes them.
  static std::pair<at::Tensor, at::Tensor> local_sums(const Pass& pass) {
    const auto dtype = pass.mean.scalar_type();
    if (pass.input.numel() == 0) return {at::zeros_like(pass.mean), at::zeros_like(pass.mean)};
    auto [none, weight, bias] =
        at::native_batch_norm_backward(pass.gradient.to(dtype), pass.input.to(dtype), {}, pass.mean, pass.variance, {},
                                       {}, /*train=*/false, pass.eps, {false, true, true});
    return {std::move(weight), std::move(bias)};
  }

  /// `means`: over all ranks, of output gradients and of output gradients times normalized inputs.
  static at::Tensor input_gradient(const Pass& pass, const at::Tensor& means) {
    const std::int64_t channels = pass.mean.numel();
    const auto dtype = pass.mean.scalar_type();
    const at::Tensor inverse = (pass.variance.to(means.scalar_type()) + pass.eps).rsqrt();
    const at::Tensor scale = pass.weight.defined() ? inverse * pass.weight : inverse;
    const at::Tensor of_input = -scale * inverse * means.narrow(0, channels, channels);
    const at::Tensor constant = -scale * means.narrow(0, 0, channels);
    const auto along = [&](const at::Tensor& values) { return along_channels(values, pass.input); };
    // Centres the input first, because a product with a large mean would cancel.
    const at::Tensor centred = pass.input.to(dtype) - along(pass.mean);
    at::Tensor gradient = at::addcmul(along(constant), centred, along(of_input));
    gradient.addcmul_(pass.gradient.to(dtype), along(scale));
    return gradient.to(pass.input.scalar_type());
  }
};

/// Why `input` cannot be normalized; empty if it can.
std::string refusal(const at::Tensor& input, const SyncBatchNormImpl& module) {
  const std::int64_t features = module.options.num_features();
  std::string text;
  if (features == 0) return "num_features is 0";
  if (!input.defined()) return "the input is undefined";
  if (input.dim() < 2 || input.dim() > 5 || input.size(1) != features) {
    text = "the input must be [N, ";
    text += std::to_string(features);
    text += ", ...] with 2 to 5 dimensions, it is [";
    for (std::int64_t i = 0; i < input.dim(); ++i) text += (i > 0 ? ", " : "") + std::to_string(input.size(i));
    text += "]";
  } else if (input.is_meta() || !input.is_floating_point() || input.is_sparse()) {
    text = "the input must be a dense floating tensor with memory";
  } else {
    for (const at::Tensor& own : {module.weight, module.running_mean}) {
      if (!own.defined()) continue;
      if (own.device() != input.device()) {
        text = "the input is on " + input.device().str() + " and the module on " + own.device().str() +
               ": move one of them with to(device)";
        break;
      }
      if (own.scalar_type() == input.scalar_type() || own.scalar_type() == wide(input.scalar_type())) continue;
      text = "the input is ";
      text += c10::toString(input.scalar_type());
      text += " and the module ";
      text += c10::toString(own.scalar_type());
      text += ": convert one of them with to(dtype)";
      break;
    }
  }
  return text;
}

void require_several_values(std::int64_t count, int ranks) {
  if (count != 1) return;
  throw UsageError("SyncBatchNorm: each channel has one value over " + std::to_string(ranks) +
                   " ranks and so no variance: train with larger batches");
}

/// `counts`: one per rank, in CPU memory, negative if the rank rejected its input.
void require_all_inputs(const at::Tensor& counts) {
  std::vector<int> ranks;
  std::string names;
  for (std::int64_t rank = 0; rank < counts.size(0); ++rank) {
    if (counts[rank].item<double>() >= 0) continue;
    ranks.push_back(static_cast<int>(rank));
    names += (names.empty() ? "" : ", ") + std::to_string(rank);
  }
  if (ranks.empty()) return;
  throw PeerError("SyncBatchNorm: the input was rejected on ranks " + names + ", see their errors for the reason",
                  ranks);
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options_, const Communicator& communicator)
    : NormImplBase(options_), communicator_(communicator.get_or_duplicate("SyncBatchNorm")) {}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& input) {
  const std::string why = refusal(input, *this);
  if (!why.empty()) throw UsageError("SyncBatchNorm, rank " + std::to_string(communicator_.rank()) + ": " + why);
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  return is_training() && communicator_.size() > 1 ? normalize_across_ranks(input) : normalize_locally(input);
}

double SyncBatchNormImpl::next_momentum() {
  if (!is_training() || !num_batches_tracked.defined()) return options.momentum().value_or(0.0);
  num_batches_tracked += 1;
  if (options.momentum()) return *options.momentum();
  return 1.0 / num_batches_tracked.item<double>();  // a mean over all batches
}

at::Tensor SyncBatchNormImpl::normalize_locally(const at::Tensor& input) {
  _check_input_dim(input);
  const bool by_batch = is_training() || !options.track_running_stats();
  if (by_batch) require_several_values(input.numel() / input.size(1), 1);
  return at::batch_norm(input, optional(weight), optional(bias), optional(running_mean), optional(running_var),
                        by_batch, next_momentum(), options.eps(), /*cudnn_enabled=*/false);
}

at::Tensor SyncBatchNormImpl::normalize_across_ranks(const at::Tensor& input) {
  const at::Tensor& of_module = weight.defined() ? weight : running_mean;
  const at::Tensor& deciding = of_module.defined() ? of_module : input;  // equal on ranks that reject their inputs
  const bool on_device = deciding.defined() && devices::is_accelerator(deciding.device());
  const BatchStatistics statistics = on_device ? global_statistics_on_device(input) : global_statistics(input);
  if (statistics.count == 0) return normalize_locally(input);
  update_running_statistics(statistics);
  return Normalize::apply(input, optional(weight), optional(bias), statistics, options.eps(), communicator_);
}

void SyncBatchNormImpl::update_running_statistics(const sync::BatchStatistics& statistics) {
  if (!running_mean.defined()) return;
  const at::NoGradGuard no_grad;
  const auto count = static_cast<double>(statistics.count);
  const at::Tensor mean = statistics.mean.to(running_mean.scalar_type());
  const at::Tensor variance = (statistics.variance * (count / (count - 1))).to(running_var.scalar_type());
  if (!options.momentum() && devices::is_accelerator(running_mean.device())) {
    // The number of batches stays on the device, so that the host does not wait for it.
    num_batches_tracked += 1;
    const at::Tensor share = num_batches_tracked.to(running_mean.scalar_type()).reciprocal();
    running_mean.lerp_(mean, share);
    running_var.lerp_(variance, share);
    return;
  }
  const double momentum = next_momentum();
  running_mean.mul_(1 - momentum).add_(mean, momentum);
  running_var.mul_(1 - momentum).add_(variance, momentum);
}

sync::BatchStatistics SyncBatchNormImpl::global_statistics(const at::Tensor& input) {
  const at::NoGradGuard no_grad;
  const std::int64_t row = 1 + 2 * options.num_features();
  const bool refused = !refusal(input, *this).empty();
  const at::Tensor own = refused ? at::full({row}, -1.0, at::kDouble)
                                 : sync::pack(sync::statistics_of(input.to(wide(input.scalar_type()))));
  const at::Tensor rows = at::empty({communicator_.size(), row}, at::kDouble);
  communicator_.all_gather(rows, own, comm::internal_call("SyncBatchNorm")).wait();
  _check_input_dim(input);
  require_all_inputs(rows.select(1, 0));
  const auto statistics = sync::combine(rows);
  require_several_values(statistics.count, communicator_.size());
  return statistics;
}

// The host knows the counts and the refusals, so it exchanges them and does not wait for the device.
sync::BatchStatistics SyncBatchNormImpl::global_statistics_on_device(const at::Tensor& input) {
  const at::NoGradGuard no_grad;
  const bool refused = !refusal(input, *this).empty();
  const auto count = refused ? -1.0 : static_cast<double>(input.numel() / input.size(1));
  const at::Tensor counts = at::empty({communicator_.size()}, at::kDouble);
  communicator_.all_gather(counts, at::full({1}, count, at::kDouble), comm::internal_call("SyncBatchNorm counts"))
      .wait();
  _check_input_dim(input);
  require_all_inputs(counts);
  const auto total = static_cast<std::int64_t>(counts.sum().item<double>());
  require_several_values(total, communicator_.size());
  const at::Tensor own = sync::pack(sync::statistics_of(input.to(wide(input.scalar_type()))));
  const at::Tensor rows = at::empty({communicator_.size(), own.numel()}, own.options());
  communicator_.all_gather(rows, own, comm::internal_call("SyncBatchNorm")).wait();
  return sync::combine(rows, total);
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "tutti::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps()
         << ", momentum=";
  if (options.momentum()) {
    stream << *options.momentum();
  } else {
    stream << "None";
  }
  stream << ", affine=" << options.affine() << ", track_running_stats=" << options.track_running_stats() << ')';
}

}  // namespace tutti
