#include "tutti/optim/clip_grad.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tutti/core/error.h"

namespace tutti {
namespace {

std::vector<at::Tensor> parameters_with_gradients(const std::vector<at::Tensor>& gradients) {
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& gradient : gradients) {
    parameters.push_back(at::zeros_like(gradient).requires_grad_());
    parameters.back().mutable_grad() = gradient;
  }
  return parameters;
}

TEST(ClipGradNorm, ScalesTheJointNormDownAndReturnsTheOneBefore) {
  const auto parameters = parameters_with_gradients({at::full({1}, 3.0F), at::full({1}, 4.0F)});
  EXPECT_DOUBLE_EQ(clip_grad_norm(parameters, 1.0), 5.0);
  EXPECT_NEAR(parameters[0].grad().item<float>(), 0.6, 1e-6);
  EXPECT_NEAR(parameters[1].grad().item<float>(), 0.8, 1e-6);
}

TEST(ClipGradNorm, LeavesSmallGradientsAlone) {
  const auto parameters = parameters_with_gradients({at::full({2}, 0.25F)});
  clip_grad_norm(parameters, 1.0);
  EXPECT_TRUE(at::equal(parameters[0].grad(), at::full({2}, 0.25F)));
}

TEST(ClipGradNorm, OtherNormsAndUndefinedGradients) {
  auto parameters = parameters_with_gradients({at::full({2}, -3.0F), at::full({1}, 2.0F)});
  parameters.push_back(at::zeros({4}).requires_grad_());
  EXPECT_DOUBLE_EQ(clip_grad_norm(parameters, 100, 1.0), 8.0);
  EXPECT_DOUBLE_EQ(clip_grad_norm(parameters, 100, std::numeric_limits<double>::infinity()), 3.0);
}

// at::norm in fp32 is off by 2e-4 over this many equal elements.
TEST(ClipGradNorm, SumsInDouble) {
  const std::int64_t count = 6'800'000;
  const auto parameters = parameters_with_gradients({at::full({count}, 0.1F)});
  const double element = static_cast<double>(0.1F);
  EXPECT_NEAR(clip_grad_norm(parameters, 1e9) / (element * std::sqrt(static_cast<double>(count))), 1.0, 1e-10);
}

TEST(ClipGradNorm, RefusesWhatIsNoNorm) {
  EXPECT_THROW(clip_grad_norm({}, -1.0), UsageError);
  EXPECT_THROW(clip_grad_norm({}, 1.0, 0.0), UsageError);
}

}  // namespace
}  // namespace tutti
