#include "sync/window_resharding.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string>

#include "sync/window.h"

namespace tutti {

namespace {

bool weighted(const StateDict& state) {
  return state.get<std::int64_t>("window.weighting") == static_cast<std::int64_t>(Weighting::weighted);
}

/// The gradient of `name` in `state` as a local share of one of `old_size` ranks.
at::Tensor share_of(const StateDict& state, const std::string& name, int old_size) {
  const at::Tensor& gradient = state.get<at::Tensor>("gradient." + name);
  if (!state.get<bool>("averaged." + name)) return gradient.clone();
  return gradient.mul(state.get<double>("total_weight") * state.get<double>("loss_scale") / old_size);
}

}  // namespace

StateDict reshard_windows(std::span<const StateDict> of_ranks, int rank, int size) {
  const at::NoGradGuard no_grad;
  const auto old_size = static_cast<int>(of_ranks.size());
  bool any_weighted = false;
  std::int64_t weighting = 0;
  std::int64_t passes = 0;
  std::int64_t joined = 0;
  WeightUnit unit = WeightUnit::none;
  for (const StateDict& state : of_ranks) {
    any_weighted = any_weighted || weighted(state);
    weighting = std::max(weighting, state.get<std::int64_t>("window.weighting"));
    // The ranks with the most passes over these parameters have the fewest over other parts of the model only.
    const auto of_rank = state.get<std::int64_t>("window.passes");
    if (of_rank >= passes) joined = state.contains("window.joined") ? state.get<std::int64_t>("window.joined") : 0;
    passes = std::max(passes, of_rank);
    unit = combined(unit, weight_unit_of(state.part("window")));
    if (state.get<std::int64_t>("window.steps") != of_ranks[0].get<std::int64_t>("window.steps")) {
      throw CheckpointError("the ranks' saved windows belong to different optimizer steps: the checkpoint is damaged");
    }
  }
  // Gradients that a step has used are the same mean on every rank.
  if (of_ranks[0].get<bool>("consumed") || of_ranks[0].contains("left")) return of_ranks[rank % old_size];
  if (unit == WeightUnit::mixed) {
    throw CheckpointError(
        "the checkpoint was saved inside a window with scopes on split batches (split_batches) and with other scopes, "
        "whose weights cannot be compared on another number of ranks: start the same number of ranks, or save between "
        "optimizer steps");
  }
  // A plain mean divides by the number of ranks, which has changed. So has the size of a part of a split batch.
  const bool parts = unit == WeightUnit::split_batch_part;
  const double factor = parts || !any_weighted ? static_cast<double>(size) / old_size : 1;
  // A rank without a predecessor has the same counters and no gradients.
  StateDict result;
  for (const auto& [name, value] : of_ranks[rank % old_size].values()) {
    if (!name.starts_with("gradient.") && !name.starts_with("averaged.")) result.set(name, value);
  }
  double weight = 0;
  std::map<std::string, at::Tensor> sums;
  for (int old = rank; old < old_size; old += size) {
    const StateDict& state = of_ranks[old];
    weight += state.get<double>("window.weight");
    const StateDict gradients = state.part("gradient");
    for (const auto& [name, value] : gradients.values()) {
      const at::Tensor local_share = share_of(state, name, old_size);
      const auto [sum, is_first] = sums.try_emplace(name, local_share);
      if (!is_first) sum->second.add_(local_share);
    }
  }
  // An old rank may have had no pass in the window.
  result.set("window.weighting", weighting);
  result.set("window.passes", passes);
  result.set("window.joined", joined);
  result.set("window.weight", parts ? weight * factor : weight);
  result.set("window.weight_unit", static_cast<std::int64_t>(unit));
  const bool any_gradient =
      std::ranges::any_of(of_ranks, [](const StateDict& state) { return !state.part("gradient").empty(); });
  // Local shares of a mean are pending on every rank.
  if (any_gradient) result.set("window.pending", std::max<std::int64_t>(1, result.get<std::int64_t>("window.pending")));
  for (auto& [name, sum] : sums) {
    if (factor != 1) sum.mul_(factor);
    result.set("gradient." + name, sum);
    result.set("averaged." + name, false);
  }
  return result;
}

}  // namespace tutti
