#include "sync/reproducible_rules.h"

#include <bit>
#include <cmath>
#include <string>

#include "tutti/core/error.h"
#include "tutti/detail/comm/gradient_communicator.h"

namespace tutti::sync {

void require_reproducible(const ParameterSet& parameters, const ReducerOptions& options,
                          const Communicator& communicator) {
  if (options.gradient_codec)
    throw UsageError("a gradient_codec rounds between nodes only, so sums cannot be reproducible");
  for (const NamedParameter& parameter : parameters.trained) {
    const at::ScalarType dtype = parameter.tensor.scalar_type();
    if (parameter.sparse || (dtype != at::kFloat && dtype != at::kDouble)) {
      throw UsageError("the gradients of " + quoted(parameter) + " are " +
                       (parameter.sparse ? "sparse" : std::string("of type ") + toString(dtype)) +
                       ": reproducible sums need dense float or double gradients");
    }
    const at::Device device = parameter.tensor.device();
    if (comm::GradientCommunicator(communicator).sums_in_fixed_order(device)) continue;
    throw UsageError("the gradients of " + quoted(parameter) + " are on " + device.str() + ", where the " +
                     communicator.backend_name() +
                     " backend adds ranks in no fixed order: reproducible sums need the backend staged");
  }
}

void require_reproducible_scope(const ParameterSet& parameters, const AccumulationStep& step,
                                std::int64_t micro_batches, int ranks) {
  if (step.sync_each_batch) {
    throw UsageError("sync_each_batch synchronizes each micro-batch alone, so a reproducible sum is not possible");
  }
  // The sum of the weights is exact, in any order, if they are such multiples and not too large.
  constexpr double unit = 1.0 / (1 << 20);
  constexpr double most = 1 << 24;
  if (step.weight > most || std::fmod(step.weight, unit) != 0) {
    throw UsageError(
        "the weight " + std::to_string(step.weight) +
        " of a micro-batch: the sum of such weights depends on their order. Pass a whole number of at most "
        "2^24, of samples or tokens");
  }
  if (!step.syncs || ranks == 1 || std::has_single_bit(static_cast<std::uint64_t>(micro_batches))) return;
  throw UsageError(
      parameters.model_prefix() + "a window of " + std::to_string(micro_batches) + " micro-batches on each of " +
      std::to_string(ranks) +
      " ranks: a reproducible sum on several ranks needs 1, 2, 4, 8, ... on each. Choose another number of "
      "micro-batches or ranks, and data that fill all windows");
}

void require_reproducible_pass(const ParameterSet& parameters, const AccumulationWindowState& window) {
  if (window.scope() && !window.synced_in_scope()) return;
  throw UsageError(parameters.model_prefix() +
                   (window.scope()
                        ? "a backward pass after this step's gradients were synchronized: a reproducible sum holds "
                          "all passes of a scope, so clip and step after the last one"
                        : "a backward pass outside accumulate(): a reproducible sum adds accumulate() scopes"));
}

}  // namespace tutti::sync
