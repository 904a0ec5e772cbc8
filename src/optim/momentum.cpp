#include "optim/momentum.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <string>
#include <tuple>

#include "tutti/core/error.h"

namespace tutti {

namespace {

/// `below_limit`: false for NaN.
void check_momentum(double momentum, bool below_limit, const std::string& rule) {
  if (momentum >= 0 && below_limit) return;
  throw UsageError("the schedule gives a momentum of " + std::to_string(momentum) + ": " + rule);
}

template <typename Options>
bool set_beta1(torch::optim::OptimizerOptions& options, double momentum) {
  auto* known = dynamic_cast<Options*>(&options);
  if (known == nullptr) return false;
  check_momentum(momentum, momentum < 1, "beta1 must be at least 0 and less than 1");
  known->betas({momentum, std::get<1>(known->betas())});
  return true;
}

template <typename Options>
bool set_plain(torch::optim::OptimizerOptions& options, double momentum) {
  auto* known = dynamic_cast<Options*>(&options);
  if (known == nullptr) return false;
  check_momentum(momentum, std::isfinite(momentum), "a momentum must be 0 or positive, and finite");
  known->momentum(momentum);
  return true;
}

}  // namespace

void set_momentum(torch::optim::Optimizer& optimizer, double momentum) {
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    torch::optim::OptimizerOptions& options = group.options();
    const bool known = set_beta1<torch::optim::AdamWOptions>(options, momentum) ||
                       set_beta1<torch::optim::AdamOptions>(options, momentum) ||
                       set_plain<torch::optim::SGDOptions>(options, momentum) ||
                       set_plain<torch::optim::RMSpropOptions>(options, momentum);
    if (!known) {
      throw UsageError(
          "the schedule sets a momentum, which tutti supports for SGD, RMSprop, Adam and AdamW only: switch the "
          "schedule's momentum off");
    }
  }
}

}  // namespace tutti
