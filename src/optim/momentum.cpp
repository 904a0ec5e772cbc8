#include "optim/momentum.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <tuple>

#include "tutti/core/error.h"

namespace tutti {

namespace {

/// Sets the momentum of `options`, or with false only checks it. Returns false for options of another class.
using SetMomentum = bool (*)(torch::optim::OptimizerOptions& options, double momentum, bool sets);

/// `below_limit`: false for NaN.
void check_momentum(double momentum, bool below_limit, const std::string& rule) {
  if (momentum >= 0 && below_limit) return;
  throw UsageError("the schedule gives a momentum of " + std::to_string(momentum) + ": " + rule);
}

template <typename Options>
bool set_beta1(torch::optim::OptimizerOptions& options, double momentum, bool sets) {
  auto* known = dynamic_cast<Options*>(&options);
  if (known == nullptr) return false;
  check_momentum(momentum, momentum < 1, "beta1 must be at least 0 and less than 1");
  if (sets) known->betas({momentum, std::get<1>(known->betas())});
  return true;
}

template <typename Options>
bool set_plain(torch::optim::OptimizerOptions& options, double momentum, bool sets) {
  auto* known = dynamic_cast<Options*>(&options);
  if (known == nullptr) return false;
  check_momentum(momentum, std::isfinite(momentum), "a momentum must be 0 or positive, and finite");
  if (sets) known->momentum(momentum);
  return true;
}

}  // namespace

void set_momentum(torch::optim::Optimizer& optimizer, double momentum) {
  constexpr std::array<SetMomentum, 4> classes = {
      set_beta1<torch::optim::AdamWOptions>, set_beta1<torch::optim::AdamOptions>, set_plain<torch::optim::SGDOptions>,
      set_plain<torch::optim::RMSpropOptions>};
  for (const bool sets : {false, true}) {  // all groups are checked before the first one changes
    for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
      const auto attempt = [&](SetMomentum set) { return set(group.options(), momentum, sets); };
      if (std::ranges::any_of(classes, attempt)) continue;
      throw UsageError(
          "the schedule sets a momentum, which tutti supports for SGD, RMSprop, Adam and AdamW only: switch the "
          "schedule's momentum off");
    }
  }
}

}  // namespace tutti
