#include "tutti/optim/clip_grad.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>

#include <cmath>
#include <limits>
#include <string>

#include "tutti/core/error.h"

namespace tutti::clip_grad_test {
namespace {

std::vector<at::Tensor> parameters_with_gradients(const std::vector<at::Tensor>& gradients) {
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& gradient : gradients) {
    parameters.push_back(at::zeros_like(gradient).requires_grad_());
    parameters.back().mutable_grad() = gradient;
  }
  return parameters;
}

// A sparse gradient that holds a row twice is the sum of both.
TEST(ClipGradNorm, AddsTheRowsThatASparseGradientHoldsTwice) {
  const auto rows = at::tensor({1, 1}, at::kLong).unsqueeze(0);
  const at::Tensor parameter = at::zeros({3, 1}).requires_grad_();
  parameter.mutable_grad() = at::sparse_coo_tensor(rows, at::tensor({1.0F, 3.0F}).unsqueeze(1), {3, 1});
  EXPECT_DOUBLE_EQ(clip_grad_norm({parameter}, 2.0), 4.0);
  EXPECT_NEAR(parameter.grad().to_dense()[1].item<float>(), 2.0, 1e-6);
}

TEST(ClipGradNorm, ScalesTheJointNormDownAndReturnsTheNormBefore) {
  const auto parameters = parameters_with_gradients({at::full({1}, 3.0F), at::full({1}, 4.0F)});
  EXPECT_DOUBLE_EQ(clip_grad_norm(parameters, 1.0), 5.0);
  EXPECT_NEAR(parameters[0].grad().item<float>(), 0.6, 1e-6);
  EXPECT_NEAR(parameters[1].grad().item<float>(), 0.8, 1e-6);
}

// LibTorch lists the parameters of a layer with two names twice.
TEST(ClipGradNorm, CountsAndScalesAParameterThatIsListedTwiceOnce) {
  auto parameters = parameters_with_gradients({at::full({1}, 3.0F), at::full({1}, 4.0F)});
  parameters.push_back(parameters.front());
  EXPECT_DOUBLE_EQ(clip_grad_norm(parameters, 1.0), 5.0);
  EXPECT_NEAR(parameters[0].grad().item<float>(), 0.6, 1e-6);
  EXPECT_NEAR(parameters[1].grad().item<float>(), 0.8, 1e-6);
}

TEST(ClipGradNorm, DoesNotChangeSmallGradients) {
  const auto parameters = parameters_with_gradients({at::full({2}, 0.25F)});
  clip_grad_norm(parameters, 1.0);
  EXPECT_TRUE(at::equal(parameters[0].grad(), at::full({2}, 0.25F)));
}

TEST(ClipGradNorm, SupportsOtherNormsAndUndefinedGradients) {
  auto parameters = parameters_with_gradients({at::full({2}, -3.0F), at::full({1}, 2.0F)});
  parameters.push_back(at::zeros({4}).requires_grad_());
  EXPECT_DOUBLE_EQ(clip_grad_norm(parameters, 100, 1.0), 8.0);
  EXPECT_DOUBLE_EQ(clip_grad_norm(parameters, 100, std::numeric_limits<double>::infinity()), 3.0);
}

TEST(ClipGradNorm, SkipsGradientsWithoutElementsInEveryNorm) {
  const at::Tensor table = at::zeros({3, 2}).requires_grad_();
  table.mutable_grad() = at::sparse_coo_tensor(at::zeros({1, 0}, at::kLong), at::zeros({0, 2}), {3, 2});
  for (const double norm_type : {1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
    auto parameters = parameters_with_gradients({at::zeros({0}), at::full({1}, 4.0F)});
    parameters.push_back(table);
    EXPECT_DOUBLE_EQ(clip_grad_norm(parameters, 2.0, norm_type), 4.0);
    EXPECT_NEAR(parameters[1].grad().item<float>(), 2.0, 1e-6);
    EXPECT_DOUBLE_EQ(clip_grad_norm({table}, 2.0, norm_type), 0.0);
  }
}

TEST(ClipGradNorm, ComplexGradientsCountByTheirAbsoluteValuesAsInLibTorch) {
  for (const at::ScalarType dtype : {at::kComplexFloat, at::kComplexDouble}) {
    for (const double norm_type : {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
      at::manual_seed(3);
      const at::Tensor complex = at::randn({5, 3}, dtype);
      const at::Tensor real = at::randn({4});
      const auto ours = parameters_with_gradients({complex.clone(), real.clone()});
      const auto theirs = parameters_with_gradients({complex.clone(), real.clone()});
      const double before = torch::nn::utils::clip_grad_norm_(theirs, 0.5, norm_type);
      EXPECT_NEAR(clip_grad_norm(ours, 0.5, norm_type), before, 1e-5 * before);
      for (int i = 0; i < 2; ++i) EXPECT_TRUE(at::allclose(ours[i].grad(), theirs[i].grad(), 1e-5));
    }
  }
  const auto parameters = parameters_with_gradients({at::ones({1}), at::ones({2}, at::kComplexFloat)});
  EXPECT_THROW(clip_grad_value(parameters, 0.5), UsageError);
  EXPECT_EQ(parameters[0].grad().item<float>(), 1);
}

// at::norm in fp32 is off by 2e-4 over this many equal elements.
TEST(ClipGradNorm, SumsInDouble) {
  const std::int64_t count = 6'800'000;
  const auto parameters = parameters_with_gradients({at::full({count}, 0.1F)});
  const double element = static_cast<double>(0.1F);
  EXPECT_NEAR(clip_grad_norm(parameters, 1e9) / (element * std::sqrt(static_cast<double>(count))), 1.0, 1e-10);
}

TEST(ClipGradNorm, HasTheSameBitsOnAnyNumberOfThreads) {
  at::manual_seed(1);
  const auto parameters = parameters_with_gradients({at::randn({300'001}), at::randn({7}), at::randn({64, 1024})});
  at::set_num_threads(1);
  const double one = clip_grad_norm(parameters, 1e9);
  at::set_num_threads(3);
  EXPECT_EQ(clip_grad_norm(parameters, 1e9), one);
  at::set_num_threads(1);
}

TEST(ClipGradNorm, SupportsEveryDtypeAndLayout) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const at::Tensor values = at::randn({37, 53}).to(dtype);
    const at::Tensor exact = values.to(at::kDouble);
    const auto norm_of = [](const at::Tensor& gradient) {
      return clip_grad_norm(parameters_with_gradients({gradient}), 1e9);
    };
    EXPECT_NEAR(norm_of(values) / exact.norm().item<double>(), 1.0, 1e-14) << dtype;
    EXPECT_NEAR(norm_of(values.t()) / exact.norm().item<double>(), 1.0, 1e-14) << dtype;
    const at::Tensor part = exact.slice(1, 1, 53, 2);
    EXPECT_NEAR(norm_of(values.slice(1, 1, 53, 2)) / part.norm().item<double>(), 1.0, 1e-14) << dtype;
    EXPECT_EQ(norm_of(at::zeros({0}, dtype)), 0);
  }
}

TEST(ClipGradNorm, RefusesInvalidNorms) {
  EXPECT_THROW(clip_grad_norm({}, -1.0), UsageError);
  EXPECT_THROW(clip_grad_norm({}, 1.0, 0.0), UsageError);
}

TEST(ClipGradNorm, ANormThatIsNotFiniteIsAnErrorOnRequest) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const auto with_nan = parameters_with_gradients({at::full({2}, 3.0F), at::full({1}, nan), at::full({1}, 4.0F)});
  for (const double norm_type : {2.0, infinity}) {
    try {
      clip_grad_norm(with_nan, 1.0, norm_type, true);
      ADD_FAILURE() << "a norm of nan, type " << norm_type;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("nan"), std::string::npos) << error.what();
    }
  }
  const auto with_infinity = parameters_with_gradients({at::full({1}, static_cast<float>(infinity))});
  EXPECT_THROW(clip_grad_norm(with_infinity, 1.0, 2.0, true), UsageError);
  EXPECT_TRUE(at::equal(with_nan[0].grad(), at::full({2}, 3.0F)));
  EXPECT_TRUE(std::isnan(clip_grad_norm(with_nan, 1.0)));
  EXPECT_TRUE(std::isnan(clip_grad_norm(with_nan, 1.0, infinity)));
}

TEST(ClipGradValue, LimitsEveryElement) {
  auto parameters = parameters_with_gradients({at::tensor({-3.0F, -0.5F, 0.0F, 0.5F, 3.0F}), at::full({1}, 2.0F)});
  parameters.push_back(at::zeros({4}).requires_grad_());  // without a gradient
  clip_grad_value(parameters, 1.0);
  EXPECT_TRUE(at::equal(parameters[0].grad(), at::tensor({-1.0F, -0.5F, 0.0F, 0.5F, 1.0F})));
  EXPECT_TRUE(at::equal(parameters[1].grad(), at::full({1}, 1.0F)));
  EXPECT_FALSE(parameters[2].grad().defined());
}

TEST(ClipGradValue, KeepsNaNAndRefusesANegativeLimit) {
  const auto parameters = parameters_with_gradients({at::tensor({std::numeric_limits<float>::quiet_NaN(), 3.0F})});
  clip_grad_value(parameters, 0.0);
  EXPECT_TRUE(std::isnan(parameters[0].grad()[0].item<float>()));
  EXPECT_EQ(parameters[0].grad()[1].item<float>(), 0.0F);
  EXPECT_THROW(clip_grad_value(parameters, -1.0), UsageError);
  EXPECT_THROW(clip_grad_value(parameters, std::nan("")), UsageError);
}

}  // namespace
}  // namespace tutti::clip_grad_test
