// Ranks: none, or as a test says. Clipping of gradients on the simulated device.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "support/simulated_device/ranks.h"
#include "tutti/optim/clip_grad.h"
#include "tutti/tutti.h"

namespace tutti::test::device_clip_test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

at::Device device(int index) {
  return {simulated::type, static_cast<at::DeviceIndex>(index)};
}

/// Parameters with gradients of `dtypes` in turn, and copies of them on `devices` in turn.
struct Twins {
  explicit Twins(const std::vector<at::Device>& devices, const std::vector<at::ScalarType>& dtypes = {at::kFloat}) {
    at::manual_seed(1);
    const std::vector<std::vector<std::int64_t>> shapes{{3, 5}, {1}, {}, {0}, {400}};
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      add(at::randn(shapes[i], at::kDouble).to(dtypes[i % dtypes.size()]), devices[i % devices.size()]);
    }
  }
  void add(const at::Tensor& gradient, at::Device to) {
    host.push_back(at::zeros_like(gradient));
    host.back().mutable_grad() = gradient;
    there.push_back(at::zeros_like(gradient, gradient.options().device(to)));
    there.back().mutable_grad() = gradient.clone().to(to);
  }
  void expect_equal(double tolerance = 1e-6) const {
    for (std::size_t i = 0; i < host.size(); ++i) {
      EXPECT_TRUE(at::allclose(there[i].grad().cpu(), host[i].grad(), tolerance, tolerance, /*equal_nan=*/true)) << i;
    }
  }

  std::vector<at::Tensor> host, there;
};

TEST(DeviceClipping, EqualsTheCpuAndWaitsOnlyWhenTheNormIsRead) {
  for (const double norm_type : {1.0, 2.0, 3.0, infinity}) {
    for (const double limit : {0.0, 0.5, 1e6, infinity}) {
      SCOPED_TRACE(std::to_string(norm_type) + " " + std::to_string(limit));
      Twins twins({device(0)});
      const double expected = clip_grad_norm(twins.host, limit, norm_type);
      simulated::reset_counts();
      const LateValue norm = clip_grad_norm(twins.there, limit, norm_type);
      EXPECT_TRUE(norm.is_late());
      EXPECT_EQ(simulated::counts().all_waits(), 0);
      EXPECT_NEAR(norm, expected, 1e-5 * expected);
      EXPECT_LE(simulated::counts().all_waits(), 1);
      for (std::size_t i = 0; i < twins.host.size(); ++i) {
        EXPECT_TRUE(at::allclose(twins.there[i].grad().cpu(), twins.host[i].grad(), 1e-5, 1e-6)) << i;
      }
    }
  }
}

TEST(DeviceClipping, TakesTheSameNumberOfKernelsForAnyNumberOfGradients) {
  const auto kernels = [](int count) {
    Twins twins({device(0)});
    for (int i = 0; i < count; ++i) twins.add(at::ones({4}), device(0));
    simulated::reset_counts();
    clip_grad_norm(twins.there, 0.5);
    return simulated::counts().kernels;
  };
  EXPECT_EQ(kernels(0), kernels(50));
}

TEST(DeviceClipping, DtypesAndDevicesMayBeMixed) {
  Twins twins({device(0), device(1)}, {at::kFloat, at::kDouble, at::kBFloat16});
  const double expected = clip_grad_norm(twins.host, 0.5);
  simulated::reset_counts();
  const LateValue norm = clip_grad_norm(twins.there, 0.5);
  EXPECT_EQ(simulated::counts().all_waits(), 0);
  EXPECT_NEAR(norm, expected, 1e-5 * expected);
  twins.expect_equal(1e-2);
}

TEST(DeviceClipping, SomeGradientsMayBeOnTheCpu) {
  Twins twins({device(0), at::Device(at::kCPU)});
  const double expected = clip_grad_norm(twins.host, 0.5);
  simulated::reset_counts();
  EXPECT_NEAR(clip_grad_norm(twins.there, 0.5), expected, 1e-5 * expected);
  EXPECT_LE(simulated::counts().all_waits(), 1);
  twins.expect_equal(1e-5);
}

TEST(DeviceClipping, ComplexGradientsCountByTheirAbsoluteValues) {
  Twins twins({device(0)});
  twins.add(at::complex(at::full({3}, 3.0F), at::full({3}, 4.0F)), device(0));
  const double expected = clip_grad_norm(twins.host, 0.5);
  EXPECT_NEAR(clip_grad_norm(twins.there, 0.5), expected, 1e-5 * expected);
  twins.expect_equal(1e-5);
}

TEST(DeviceClipping, ANormThatIsNotFinite) {
  for (const double bad : {std::nan(""), infinity}) {
    Twins twins({device(0)});
    twins.add(at::tensor({1.0, bad}, at::kFloat), device(0));
    const at::Tensor before = twins.there[0].grad().cpu();
    EXPECT_THROW(clip_grad_norm(twins.there, 0.5, 2.0, /*error_if_nonfinite=*/true), UsageError);
    EXPECT_TRUE(at::equal(twins.there[0].grad().cpu(), before)) << "no gradient was changed";
    EXPECT_FALSE(std::isfinite(clip_grad_norm(twins.host, 0.5)));
    EXPECT_FALSE(std::isfinite(clip_grad_norm(twins.there, 0.5)));
    twins.expect_equal();
  }
}

TEST(DeviceClipping, ByValue) {
  Twins twins({device(0), device(1)}, {at::kFloat, at::kBFloat16});
  twins.add(at::tensor({1.0, std::nan("")}, at::kFloat), device(0));
  clip_grad_value(twins.host, 0.3);
  simulated::reset_counts();
  clip_grad_value(twins.there, 0.3);
  EXPECT_EQ(simulated::counts().all_waits(), 0);
  EXPECT_EQ(simulated::counts().kernels, 4) << "two for each device and dtype";
  twins.expect_equal();
}

// Ranks: 2 as threads, each with a simulated device.
TEST(DeviceClipping, AStepWithClippingDoesNotWait) {
  run_simulated_ranks({}, [&](const Communicator& communicator, at::Device on) {
    Accelerator accelerator({.communicator = communicator});
    torch::nn::Linear net(4, 3);
    net->to(on);
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
    const at::Tensor x = at::ones({2, 4}).to(on);
    for (int step = 0; step < 4; ++step) {
      const auto scope = accelerator.accumulate(model);
      accelerator.wait_for_everyone();
      if (step == 3) simulated::reset_counts();
      accelerator.wait_for_everyone();
      accelerator.backward(model->forward(x).square().mean());
      const auto norm = accelerator.clip_grad_norm_(model, 0.1);
      optimizer.step();
      optimizer.zero_grad();
      accelerator.wait_for_everyone();
      if (step == 3) {
        EXPECT_EQ(simulated::counts().all_waits(), 0);
        EXPECT_EQ(optimizer.not_fused_reason(), "");
      }
      accelerator.wait_for_everyone();
      EXPECT_GT(*norm, 0.0);
    }
  });
}

}  // namespace
}  // namespace tutti::test::device_clip_test
