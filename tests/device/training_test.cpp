// Ranks: 2 as threads, each with a simulated device.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>

#include "support/simulated_device/ranks.h"
#include "tutti/tutti.h"

namespace tutti::device_training_test {
namespace {

using test::run_simulated_ranks;

at::Tensor input(int index) {
  return at::randn({4, 16}, at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 + index)));
}

TEST(DeviceTraining, RanksStayEqual) {
  std::mutex mutex;
  std::vector<std::vector<at::Tensor>> ends(2);
  run_simulated_ranks({}, [&](const Communicator& communicator, at::Device device) {
    Accelerator accelerator({.communicator = communicator});
    torch::nn::Sequential net(torch::nn::Linear(16, 32), torch::nn::GELU(), torch::nn::Linear(32, 1));
    net->to(device);
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
    for (int step = 0; step < 4; ++step) {
      const auto scope = accelerator.accumulate(model);
      const at::Tensor x = input(step * 2 + accelerator.rank()).to(device);
      accelerator.backward(model->forward(x).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    }
    accelerator.wait_for_everyone();
    const std::lock_guard lock(mutex);
    for (const at::Tensor& parameter : net->parameters()) {
      ends[static_cast<std::size_t>(accelerator.rank())].push_back(parameter.detach().cpu());
    }
  });
  for (std::size_t i = 0; i < ends[0].size(); ++i) EXPECT_TRUE(at::equal(ends[0][i], ends[1][i]));
}

}  // namespace
}  // namespace tutti::device_training_test
