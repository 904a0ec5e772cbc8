// Ranks: 2 as threads, each with a simulated device. The loss scale of float16.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "device/slow_device.h"
#include "support/simulated_device/ranks.h"
#include "support/training.h"
#include "tutti/tutti.h"

namespace tutti::test::device_overflow_test {
namespace {

/// Trains 4 steps, in one of which the input of rank 1 is infinite. Returns whether each step was skipped, by rank.
std::vector<std::vector<bool>> skipped_steps(std::int64_t bucket_bytes, std::int64_t* waits) {
  std::vector<std::vector<bool>> skipped(2);
  run_simulated_ranks({}, [&](const Communicator& communicator, at::Device on) {
    Accelerator accelerator({.mixed_precision = Precision::fp16,
                             .buckets = {.first_bucket_bytes = bucket_bytes, .bucket_bytes = bucket_bytes},
                             .communicator = communicator});
    torch::nn::Sequential net(torch::nn::Linear(4, 16), torch::nn::Linear(16, 16), torch::nn::Linear(16, 1));
    fill(*net, 1);
    net->to(on);
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.01));
    for (int step = 0; step < 4; ++step) {
      at::Tensor x = at::ones({2, 4}).to(on);
      if (step == 2 && communicator.rank() == 1) x.fill_(std::numeric_limits<float>::infinity());
      accelerator.wait_for_everyone();
      if (communicator.rank() == 0) simulated::reset_counts();
      accelerator.wait_for_everyone();
      const auto scope = accelerator.accumulate(model);
      accelerator.backward(accelerator.autocast([&] { return model->forward(x).square().mean() * 0.01; }));
      optimizer.step();
      optimizer.zero_grad();
      accelerator.wait_for_everyone();
      if (communicator.rank() == 0 && step == 3) *waits = simulated::counts().all_waits();
      accelerator.wait_for_everyone();
      skipped[static_cast<std::size_t>(communicator.rank())].push_back(optimizer.step_was_skipped());
    }
  });
  return skipped;
}

TEST(DeviceOverflow, IsSeenOnAllRanksWithOneWaitForAllBuckets) {
  const SlowKernels slow(200);  // the flag is not there by chance when it is read
  const std::vector<bool> expected{false, false, true, false};
  for (const std::int64_t bytes : {std::int64_t{1} << 20, std::int64_t{64}}) {
    std::int64_t waits = 0;
    const auto skipped = skipped_steps(bytes, &waits);
    EXPECT_EQ(skipped[0], expected);
    EXPECT_EQ(skipped[1], expected);
    EXPECT_LE(waits, 2) << "one for each rank";
  }
}

// Ranks: 1.
TEST(DeviceAutocast, TakesTheAcceleratorOfThePreparedModels) {
  run_simulated_ranks({.size = 1}, [&](const Communicator& communicator, at::Device on) {
    const auto type = [&](Accelerator& accelerator) {
      const AutocastScope scope = accelerator.autocast();
      EXPECT_NE(at::autocast::is_autocast_enabled(at::kCPU), at::autocast::is_autocast_enabled(simulated::type));
      return at::autocast::is_autocast_enabled(simulated::type) ? simulated::type : at::kCPU;
    };
    Accelerator without({.mixed_precision = Precision::bf16, .communicator = communicator});
    EXPECT_EQ(type(without), at::kCPU);
    Accelerator accelerator({.mixed_precision = Precision::bf16, .communicator = communicator});
    torch::nn::Linear first(2, 2), second(2, 2);
    second->to(on);
    (void)accelerator.prepare(first, torch::optim::SGD(first->parameters(), 0.1));
    EXPECT_EQ(type(accelerator), at::kCPU);
    (void)accelerator.prepare(second, torch::optim::SGD(second->parameters(), 0.1));
    EXPECT_EQ(type(accelerator), simulated::type);
  });
}

}  // namespace
}  // namespace tutti::test::device_overflow_test
