// Ranks: 1, 2 and 4 as threads, each with a simulated device. Reproducible sums on devices.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

#include "device/both.h"
#include "device/slow_device.h"
#include "support/training.h"
#include "tutti/tutti.h"

namespace tutti::device_reproducible_test {
namespace {

using test::run_simulated_ranks;
using test::SlowKernels;

constexpr int micro_batches = 4;

std::vector<at::Tensor> train(const Communicator& communicator, at::Device device) {
  Accelerator accelerator({.reproducible = ReproducibleOptions{.micro_batches = micro_batches, .seed = 2, .threads = 1},
                           .communicator = communicator});
  test::Mlp net;
  net->to(device);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.05));
  const int share = micro_batches / communicator.size();
  for (int step = 0; step < 4; ++step) {
    for (int i = 0; i < share; ++i) {
      const auto scope = accelerator.accumulate(model);
      const auto batch = test::batch_of(step * micro_batches + communicator.rank() * share + i);
      accelerator.backward(test::loss_of(model->forward(batch.input.to(device)), batch.target.to(device)));
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  return test::tensors_of(*net);
}

TEST(DeviceReproducible, OneTwoAndFourRanksEndWithTheSameBits) {
  const SlowKernels slow(20);
  const auto alone = test::results_on_devices({.size = 1, .backend = "staged"}, train);
  for (const int size : {2, 4}) {
    for (const std::string backend : {"staged", "staged:shared_memory"}) {
      SCOPED_TRACE(std::to_string(size) + " ranks over " + backend);
      const test::TensorsOfRanks expected(static_cast<std::size_t>(size), alone.front());
      test::expect_equal(test::results_on_devices({.size = size, .backend = backend}, train), expected);
    }
  }
}

TEST(DeviceReproducible, OneRankNeedsNoStagedBackend) {
  const auto staged = test::results_on_devices({.size = 1, .backend = "staged"}, train);
  test::expect_equal(test::results_on_devices({.size = 1}, train), staged);
}

TEST(DeviceReproducible, ABackendWithoutAFixedOrderIsRefusedOnAllRanks) {
  run_simulated_ranks({}, [](const Communicator& communicator, at::Device device) {
    try {
      train(communicator, device);
      ADD_FAILURE() << "no error";
    } catch (const UsageError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("are on " + device.str() + ", where the "), std::string::npos) << text;
      EXPECT_NE(text.find("need the backend staged"), std::string::npos) << text;
    }
  });
}

}  // namespace
}  // namespace tutti::device_reproducible_test
