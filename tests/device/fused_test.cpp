// Ranks: none, and 1 where a test says so. Fused optimizer steps on the simulated device.
#include <gtest/gtest.h>

#include <functional>
#include <variant>

#include "optim/fused_cases.h"
#include "optim/fused_step.h"
#include "support/simulated_device/simulated_device.h"
#include "tutti/detail/optim/optimizer_state.h"

namespace tutti::test::device_fused_test {
namespace {

at::Device device(int index) {
  return {simulated::type, static_cast<at::DeviceIndex>(index)};
}

/// The parameters of optim/fused_cases.h with the dtypes in turn, and their copies on the devices in turn.
struct Twins {
  Twins(const std::vector<at::ScalarType>& dtypes, int devices) {
    std::vector<Tensors> all;
    for (const at::ScalarType dtype : dtypes) all.push_back(make_parameters(dtype));
    for (std::size_t i = 0; i < all[0].size(); ++i) {
      host.push_back(all[i % dtypes.size()][i]);
      const at::Device to = device(static_cast<int>(i) % devices);
      there.push_back(at::empty_like(host[i].detach(), host[i].options().device(to)).copy_(host[i].detach()));
      there[i].requires_grad_();
    }
  }
  void make_gradients(int step) {
    test::make_gradients(host, step);
    for (std::size_t i = 0; i < host.size(); ++i) {
      const at::Tensor& gradient = host[i].grad();
      at::Tensor& copy = there[i].mutable_grad();
      copy = gradient.defined() ? at::empty_like(there[i].detach()).copy_(gradient) : at::Tensor();
    }
  }

  Tensors host, there;
};

void expect_equal(const Tensors& there, const Tensors& host, const std::string& where) {
  for (std::size_t i = 0; i < host.size(); ++i) {
    const double tolerance = host[i].scalar_type() == at::kBFloat16 ? 1e-2 : 1e-6;
    EXPECT_TRUE(at::allclose(there[i].detach().cpu(), host[i].detach(), tolerance, tolerance))
        << where << ", tensor " << i;
  }
}

using Step = std::function<void(optim::Optimizer&)>;

void train_both(const Case& one, const std::vector<at::ScalarType>& dtypes, int devices, const Step& reference_step) {
  SCOPED_TRACE(one.name);
  Twins twins(dtypes, devices);
  const auto optimizer = one.make(twins.there);
  const auto reference = one.make(twins.host);
  for (int step = 1; step <= 12; ++step) {
    twins.make_gradients(step);
    simulated::reset_counts();
    ASSERT_EQ(fused_step(*optimizer), std::nullopt);
    EXPECT_EQ(simulated::counts().all_waits(), 0);
    reference_step(*reference);
  }
  expect_equal(twins.there, twins.host, one.name);
  const auto names = names_of(twins.host);
  const StateDict state = optimizer_state(*optimizer, names);
  const StateDict expected = optimizer_state(*reference, names);
  for (const auto& [key, value] : expected.values()) {
    if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
      expect_equal({state.get<at::Tensor>(key)}, {*tensor}, key);
    } else if (const auto* number = std::get_if<std::int64_t>(&value)) {
      EXPECT_EQ(state.get<std::int64_t>(key), *number) << key << ": an integer, as on the CPU";
    }
  }
}

TEST(DeviceFusedStep, EqualsLibTorchsStepOnTheCpu) {
  for (const Case& one : cases) {
    train_both(one, {at::kFloat}, 1, [](optim::Optimizer& optimizer) { optimizer.step(); });
  }
}

TEST(DeviceFusedStep, DtypesAndDevicesMayBeMixed) {
  for (const Case& one : cases) {
    // In bfloat16 LibTorch's step rounds after each operation.
    train_both(one, {at::kFloat, at::kBFloat16, at::kDouble}, 2,
               [](optim::Optimizer& optimizer) { ASSERT_EQ(fused_step(optimizer), std::nullopt); });
  }
}

TEST(DeviceFusedStep, TakesTwoKernels) {
  Tensors parameters;
  for (int i = 0; i < 20; ++i) {
    parameters.push_back(at::ones({8}, at::TensorOptions(at::kFloat).device(device(0))).requires_grad_());
    parameters.back().mutable_grad() = at::ones_like(parameters.back().detach());
  }
  optim::AdamW optimizer(parameters, 0.1);
  ASSERT_EQ(fused_step(optimizer), std::nullopt);  // makes the state
  simulated::reset_counts();
  ASSERT_EQ(fused_step(optimizer), std::nullopt);
  EXPECT_EQ(simulated::counts().kernels, 2) << "the number of steps, and the step";
}

TEST(DeviceFusedStep, RefusesADeviceWithoutAKernel) {
  const at::Tensor parameter = at::empty({4}, at::kMeta).requires_grad_();
  parameter.mutable_grad() = at::empty({4}, at::kMeta);
  optim::SGD optimizer({parameter}, SGDOptions(0.1));
  EXPECT_EQ(fused_step(optimizer), "parameter 0 of group 0: LibTorch has no fused kernel for meta");
}

}  // namespace
}  // namespace tutti::test::device_fused_test
