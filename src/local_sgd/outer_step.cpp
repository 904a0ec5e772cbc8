#include "local_sgd/outer_step.h"

#include <ATen/core/Tensor.h>

namespace tutti::local_sgd {
namespace {

void slowmo_step(const SlowMoOptions& options, const at::Tensor& anchor, const at::Tensor& momentum,
                 const at::Tensor& difference, double inner_rate) {
  momentum.mul_(options.beta).sub_(difference, 1 / inner_rate);
  anchor.sub_(momentum, options.alpha * inner_rate);
}

void diloco_step(const DiLoCoOptions& options, const at::Tensor& anchor, const at::Tensor& momentum,
                 const at::Tensor& difference) {
  if (options.momentum == 0) {
    anchor.add_(difference, options.lr);
    return;
  }
  momentum.mul_(options.momentum).sub_(difference);  // the gradient is -difference
  if (options.nesterov) {
    anchor.add_(difference, options.lr).sub_(momentum, options.lr * options.momentum);
  } else {
    anchor.sub_(momentum, options.lr);
  }
}

}  // namespace

bool keeps_momentum(const LocalSgdAlgorithmOptions& options) {
  return options.outer_optimizer == OuterOptimizer::slowmo ||
         (options.outer_optimizer == OuterOptimizer::diloco && options.diloco.momentum != 0);
}

void outer_step(const LocalSgdAlgorithmOptions& options, const at::Tensor& anchor, const at::Tensor& momentum,
                const at::Tensor& difference, double inner_rate) {
  switch (options.outer_optimizer) {
    case OuterOptimizer::average:
      anchor.add_(difference);
      return;
    case OuterOptimizer::slowmo:
      return slowmo_step(options.slowmo, anchor, momentum, difference, inner_rate);
    case OuterOptimizer::diloco:
      return diloco_step(options.diloco, anchor, momentum, difference);
  }
}

}  // namespace tutti::local_sgd
