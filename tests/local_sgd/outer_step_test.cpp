// The outer optimizers against the formulas of the papers, with numbers.
#include "local_sgd/outer_step.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

namespace tutti::local_sgd::outer_step_test {
namespace {

at::Tensor number(double value) {
  return at::full({1}, value, at::kDouble);
}

// Three rounds, in which the mean of the ranks differs from the anchor by 1, -2 and 0.5.
template <typename Rule>
void compare(const LocalSgdAlgorithmOptions& options, double rate, Rule rule) {
  const at::Tensor anchor = number(3), momentum = number(0);
  double expected = 3, expected_momentum = 0;
  for (const double moved : {1.0, -2.0, 0.5}) {
    outer_step(options, anchor, momentum, number(moved), rate);
    rule(expected, expected_momentum, expected + moved);
    EXPECT_NEAR(anchor.item<double>(), expected, 1e-12);
  }
}

TEST(OuterStep, AverageTakesTheMean) {
  compare({}, 0, [](double& x, double&, double mean) { x = mean; });
}

TEST(OuterStep, SlowMoIsThePapersRule) {
  const double alpha = 0.8, beta = 0.6, gamma = 0.05;
  compare({.outer_optimizer = OuterOptimizer::slowmo, .slowmo = {.alpha = alpha, .beta = beta}}, gamma,
          [&](double& x, double& u, double mean) {
            u = beta * u + (x - mean) / gamma;
            x -= alpha * gamma * u;
          });
}

TEST(OuterStep, DiLoCoIsSgdWithNesterovMomentum) {
  const double lr = 0.7, mu = 0.9;
  compare({.outer_optimizer = OuterOptimizer::diloco}, 0, [&](double& x, double& m, double mean) {
    const double gradient = x - mean;
    m = mu * m + gradient;
    x -= lr * (gradient + mu * m);
  });
}

TEST(OuterStep, DiLoCoWithoutNesterovIsHeavyBall) {
  const double lr = 0.4, mu = 0.5;
  compare({.outer_optimizer = OuterOptimizer::diloco, .diloco = {.lr = lr, .momentum = mu, .nesterov = false}}, 0,
          [&](double& x, double& m, double mean) {
            m = mu * m + (x - mean);
            x -= lr * m;
          });
}

TEST(OuterStep, WithoutMomentumTheAnchorBecomesTheMean) {
  const auto mean_rule = [](double& x, double&, double mean) { x = mean; };
  compare({.outer_optimizer = OuterOptimizer::slowmo, .slowmo = {.alpha = 1, .beta = 0}}, 0.1, mean_rule);
  const LocalSgdAlgorithmOptions diloco{.outer_optimizer = OuterOptimizer::diloco, .diloco = {.lr = 1, .momentum = 0}};
  compare(diloco, 0, mean_rule);
  EXPECT_FALSE(keeps_momentum(diloco));
}

}  // namespace
}  // namespace tutti::local_sgd::outer_step_test
