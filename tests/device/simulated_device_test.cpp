// Ranks: none. What the simulated accelerator shows: faults of the host, of streams and of memory.
#include <ATen/DeviceAccelerator.h>
#include <ATen/autocast_mode.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <csignal>
#include <vector>

#include "support/simulated_device/simulated_device.h"

namespace tutti::simulated_device_test {
namespace {

namespace simulated = test::simulated;

const at::Device device(simulated::type, 0);
const at::TensorOptions floats = at::TensorOptions(at::kFloat).device(device);

bool holds(const at::Tensor& on_device, const at::Tensor& expected) {
  return at::equal(on_device.cpu(), expected);
}

TEST(SimulatedDevice, OperatorsComputeAsOnTheCpu) {
  const at::Tensor x = at::arange(6, floats).view({2, 3});
  EXPECT_EQ(x.device().str(), "sim:0");
  EXPECT_TRUE(holds(x + x.t().reshape({2, 3}), at::tensor({0.F, 4.F, 3.F, 7.F, 6.F, 10.F}).view({2, 3})));
  EXPECT_TRUE(holds(x.index({x > 2}), at::tensor({3.F, 4.F, 5.F})));
  EXPECT_TRUE(holds(std::get<0>(x.max(1)), at::tensor({2.F, 5.F})));
}

TEST(SimulatedDeviceDeathTest, HostAccessIsAFault) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const at::Tensor x = at::zeros({4}, floats);
  auto* const memory = const_cast<float*>(x.const_data_ptr<float>());
  EXPECT_EXIT({ [[maybe_unused]] volatile float read = memory[0]; }, testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT({ memory[0] = 1; }, testing::KilledBySignal(SIGSEGV), "");
}

TEST(SimulatedDevice, OperandsOnTwoDevicesAreRefused) {
  const at::Tensor x = at::zeros({2, 3}, floats);
  EXPECT_THROW((void)(x + at::ones({2, 3})), c10::Error);
  EXPECT_THROW((void)(x + at::ones({2, 3}, floats.device(at::Device(simulated::type, 1)))), c10::Error);
  EXPECT_TRUE(holds(x + at::scalar_tensor(2.0), at::full({2, 3}, 2.F))) << "a number of the host may take part";
}

TEST(SimulatedDevice, TheHostRunsAhead) {
  const at::Tensor x = at::zeros({4}, floats);
  simulated::StreamLatch latch(simulated::current_stream(0));
  simulated::reset_counts();
  for (int i = 0; i < 10; ++i) x.add_(1);
  EXPECT_EQ(simulated::counts().kernels, 10);
  EXPECT_EQ(simulated::counts().all_waits(), 0);
  EXPECT_FALSE(simulated::is_idle(simulated::current_stream(0)));
  latch.open();
  EXPECT_EQ(x[0].item<float>(), 10);
  EXPECT_EQ(simulated::counts().all_waits(), 1);
}

TEST(SimulatedDevice, OnlyEventsOrderStreams) {
  const at::Tensor x = at::zeros({4}, floats);
  simulated::wait_for_device(0, "test");
  const c10::Stream side = simulated::pool_stream(0);
  simulated::StreamLatch latch(simulated::current_stream(0));
  x.fill_(1);
  c10::Event filled(simulated::type);
  filled.record(simulated::current_stream(0));
  const c10::StreamGuard guard(side);
  EXPECT_EQ((x + 0)[0].item<float>(), 0) << "a stream without an event reads too early";
  filled.block(side);
  const at::Tensor late = x + 0;
  latch.open();
  EXPECT_EQ(late[0].item<float>(), 1);
}

/// A copy of ones on a side stream. The memory of the ones is freed before the copy runs.
at::Tensor copy_of_freed_memory(bool records_stream) {
  at::Tensor x = at::ones({4}, floats);
  simulated::wait_for_device(0, "test");
  const c10::Stream side = simulated::pool_stream(0);
  simulated::StreamLatch latch(side);
  at::Tensor copy;
  {
    const c10::StreamGuard guard(side);
    copy = x + 0;
    if (records_stream) x.record_stream(side);
  }
  x.reset();
  (void)at::zeros({4}, floats);
  simulated::wait_for(simulated::current_stream(0), "test");
  latch.open();
  simulated::wait_for(side, "test");
  return copy;
}

TEST(SimulatedDevice, FreedMemoryIsReusedAtOnceUnlessTheStreamIsRecorded) {
  EXPECT_FALSE(holds(copy_of_freed_memory(false), at::ones({4})));
  EXPECT_TRUE(holds(copy_of_freed_memory(true), at::ones({4})));
}

TEST(SimulatedDevice, MemoryIsNaNUntilItIsWritten) {
  EXPECT_TRUE(at::empty({4}, floats).isnan().all().item<bool>());
}

TEST(SimulatedDevice, RunsOutOfMemory) {
  at::accelerator::emptyCache();
  const auto [free_bytes, total] = at::accelerator::getMemoryInfo(0);
  simulated::settings().memory_bytes = total - free_bytes + (1 << 20);
  {
    const at::Tensor half = at::empty({1 << 19}, floats.dtype(at::kByte));
    EXPECT_THROW((void)at::empty({1 << 20}, floats.dtype(at::kByte)), c10::OutOfMemoryError);
  }
  simulated::reset_counts();
  at::accelerator::emptyCache();
  EXPECT_EQ(simulated::counts().emptied_caches, 1);
  EXPECT_NO_THROW((void)at::empty({1 << 20}, floats.dtype(at::kByte)));
  simulated::settings().memory_bytes = total;
}

TEST(SimulatedDevice, TheNextWaitThrowsWhatAKernelThrew) {
  simulated::launch(simulated::current_stream(0), [] { throw std::runtime_error("a kernel's"); });
  EXPECT_THROW(simulated::wait_for_device(0, "test"), std::runtime_error);
  EXPECT_NO_THROW(simulated::wait_for_device(0, "test"));
}

TEST(SimulatedDevice, AStateOfTheGeneratorBringsItsNumbersBack) {
  torch::manual_seed(7);
  const at::Tensor first = at::randn({5}, floats);
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const at::Tensor state = generator.get_state();
  const at::Tensor second = at::randn({5}, floats);
  generator.set_state(state);
  EXPECT_TRUE(holds(at::randn({5}, floats), second.cpu()));
  EXPECT_FALSE(holds(first, second.cpu()));
  torch::manual_seed(7);
  EXPECT_TRUE(holds(at::randn({5}, floats), first.cpu())) << "torch::manual_seed seeds the device";
}

TEST(SimulatedDevice, DropoutKeepsItsShare) {
  torch::manual_seed(7);
  const at::Tensor kept = torch::dropout(at::ones({1000}, floats), 0.25, true).gt(0).sum();
  EXPECT_NEAR(kept.item<double>(), 750, 50);
}

TEST(SimulatedDevice, AutocastComputesInBfloat16) {
  at::autocast::set_autocast_enabled(simulated::type, true);
  at::autocast::set_autocast_dtype(simulated::type, at::kBFloat16);
  const at::Tensor y = torch::linear(at::ones({2, 3}, floats), at::ones({4, 3}, floats).requires_grad_());
  const at::Tensor sum = y.exp();
  at::autocast::set_autocast_enabled(simulated::type, false);
  at::autocast::clear_cache();
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_EQ(sum.scalar_type(), at::kFloat);
}

TEST(SimulatedDevice, CopiesFromPinnedMemoryAreNotWaitedFor) {
  const at::Tensor host = at::ones({1000}).pin_memory();
  EXPECT_TRUE(host.is_pinned());
  simulated::StreamLatch latch(simulated::current_stream(0));
  simulated::reset_counts();
  const at::Tensor x = host.to(device, /*non_blocking=*/true);
  const at::Tensor back = at::zeros({1000}).pin_memory();
  back.copy_(x, /*non_blocking=*/true);
  EXPECT_EQ(simulated::counts().all_waits(), 0);
  EXPECT_EQ(back[0].item<float>(), 0) << "the copy has not run";
  host.fill_(2);
  latch.open();
  simulated::wait_for_device(0, "test");
  EXPECT_EQ(back[0].item<float>(), 2) << "the copy reads the memory when it runs";
  simulated::reset_counts();
  (void)host.to(device);
  (void)x.to(at::kCPU);
  EXPECT_EQ(simulated::counts().all_waits(), 2);
}

TEST(SimulatedDevice, AListOperatorIsOneKernel) {
  std::vector<at::Tensor> x, y;
  for (int i = 0; i < 5; ++i) {
    x.push_back(at::full({i + 1}, 1.0, floats));
    y.push_back(at::full({i + 1}, 2.0, floats));
  }
  simulated::reset_counts();
  at::_foreach_add_(x, y);
  at::_foreach_mul_(x, at::scalar_tensor(2.0, floats));
  at::_foreach_copy_(y, x);
  const std::vector<at::Tensor> norms = at::_foreach_norm(x, 2);
  EXPECT_EQ(simulated::counts().kernels, 5) << "the fifth fills the factor";
  EXPECT_TRUE(holds(y[4], at::full({5}, 6.0)));
  EXPECT_NEAR(norms[4].item<double>(), 6 * std::sqrt(5.0), 1e-5);
}

TEST(SimulatedDevice, AListOperatorTakesTensorsOfSeveralDevices) {
  const std::vector<at::Tensor> from{at::ones({2}), at::ones({2}, floats)};
  const std::vector<at::Tensor> to{at::zeros({2}, floats),
                                   at::zeros({2}, floats.device(at::Device(simulated::type, 1)))};
  at::_foreach_copy_(to, from);
  for (const at::Tensor& tensor : to) EXPECT_TRUE(holds(tensor, at::ones({2})));
}

TEST(SimulatedDevice, AFusedStepIsOneKernelAndEqualsTheCpu) {
  const auto step = [](at::Device on) {
    const at::TensorOptions options = floats.device(on);
    std::vector<at::Tensor> parameters, gradients, averages, squares, maxima, steps;
    for (int i = 0; i < 3; ++i) {
      parameters.push_back(at::full({4}, 1.0 + i, options));
      gradients.push_back(at::full({4}, 0.5, options));
      averages.push_back(at::zeros({4}, options));
      squares.push_back(at::zeros({4}, options));
      steps.push_back(at::ones({}, options));
    }
    simulated::reset_counts();
    at::_fused_adamw_(parameters, gradients, averages, squares, maxima, steps, /*lr=*/0.1, 0.9, 0.999,
                      /*weight_decay=*/0.01, 1e-8, /*amsgrad=*/false, /*maximize=*/false);
    return parameters;
  };
  const std::vector<at::Tensor> expected = step(at::kCPU);
  const std::vector<at::Tensor> actual = step(device);
  EXPECT_EQ(simulated::counts().kernels, 1);
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(holds(actual[i], expected[i]));
}

TEST(SimulatedDevice, KnowsTheDevicesThatAThreadHasUsed) {
  simulated::forget_touched();
  (void)at::zeros({1}, floats.device(at::Device(simulated::type, 2)));
  EXPECT_TRUE(simulated::touched(2));
  EXPECT_FALSE(simulated::touched(3));
}

}  // namespace
}  // namespace tutti::simulated_device_test
