// One rank, because autocast is a mode of the thread.
#include "tutti/detail/amp/autocast.h"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <utility>

#include "tutti/core/error.h"

namespace tutti::autocast_test {
namespace {

at::ScalarType dtype_of_a_product() {
  return at::mm(at::ones({2, 2}), at::ones({2, 2})).scalar_type();
}

TEST(Autocast, ComputesProductsInTheLowerPrecisionInsideTheScopeOnly) {
  {
    const AutocastScope scope(Precision::bf16, c10::DeviceType::CPU);
    EXPECT_EQ(dtype_of_a_product(), at::kBFloat16);
  }
  EXPECT_EQ(dtype_of_a_product(), at::kFloat);
}

// Accelerate silently disables autocast for fp16 on the CPU; tutti does not.
TEST(Autocast, Fp16OnTheCpuIsFp16) {
  const AutocastScope scope(Precision::fp16, c10::DeviceType::CPU);
  EXPECT_EQ(dtype_of_a_product(), at::kHalf);
}

TEST(Autocast, KeepsSensitiveOperationsInFloat32) {
  const AutocastScope scope(Precision::bf16, c10::DeviceType::CPU);
  const at::Tensor half = at::ones({2, 2}).to(at::kBFloat16);
  EXPECT_EQ(at::nll_loss(at::log_softmax(half, 1), at::zeros({2}, at::kLong)).scalar_type(), at::kFloat);
}

TEST(Autocast, ScopesNestAndAnInnerScopeCanDisableAutocast) {
  const AutocastScope outer(Precision::bf16, c10::DeviceType::CPU);
  {
    const AutocastScope off(Precision::no, c10::DeviceType::CPU);
    EXPECT_EQ(dtype_of_a_product(), at::kFloat);
    const AutocastScope inner(Precision::fp16, c10::DeviceType::CPU);
    EXPECT_EQ(dtype_of_a_product(), at::kHalf);
  }
  EXPECT_EQ(dtype_of_a_product(), at::kBFloat16);
}

TEST(Autocast, AMovedFromScopeChangesNothing) {
  AutocastScope first(Precision::bf16, c10::DeviceType::CPU);
  {
    const AutocastScope second(std::move(first));
    EXPECT_EQ(dtype_of_a_product(), at::kBFloat16);
  }
  EXPECT_EQ(dtype_of_a_product(), at::kFloat);
}

// A cached cast weight must not be used after the optimizer step that follows the scope.
TEST(Autocast, ForgetsCastWeightsWhenTheOutermostScopeEnds) {
  at::Tensor weight = at::ones({2, 2}).requires_grad_();
  const auto product = [&weight] {
    const AutocastScope scope(Precision::bf16, c10::DeviceType::CPU);
    return at::mm(at::ones({2, 2}), weight).sum().item<double>();
  };
  EXPECT_EQ(product(), 8);
  {
    const at::NoGradGuard no_grad;
    weight.mul_(2);
  }
  EXPECT_EQ(product(), 16);
}

TEST(Autocast, RefusesADeviceWithoutAutocast) {
  EXPECT_THROW(AutocastScope(Precision::bf16, c10::DeviceType::Meta), UsageError);
}

}  // namespace
}  // namespace tutti::autocast_test
