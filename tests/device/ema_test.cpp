// Ranks: 1. The moving average of parameters on a simulated device.
#include "tutti/train/callbacks/ema.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/simulated_device/ranks.h"
#include "support/training.h"
#include "tutti/tutti.h"

namespace tutti::test::device_ema_test {
namespace {

struct Numbers {
  std::size_t size() const { return 32; }
  at::Tensor get_batch(const std::vector<std::size_t>& indices) const {
    return at::zeros({static_cast<std::int64_t>(indices.size())});
  }
};

/// The average after 5 steps on `device`, on the CPU.
std::map<std::string, at::Tensor> average_on(const Communicator& communicator, at::Device device) {
  Accelerator accelerator({.communicator = communicator});
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::Linear(8, 1));
  fill(*net, 1);
  net->to(device);
  auto loader = accelerator.data_loader(Numbers(), {.batch_size = 2});
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.05));
  const at::Tensor input = at::ones({2, 4}).to(device);
  Trainer<torch::nn::Sequential, DataLoader<Numbers>> trainer(
      accelerator, net, optimizer, std::nullopt, loader,
      {.loss = [&](torch::nn::Sequential& sequential,
                   at::Tensor&) { return sequential->forward(input).square().mean(); }},
      {.max_steps = 5, .log_every = 0, .stop_on_signal = false, .progress_bar = false});
  const auto ema = std::make_shared<Ema>(EmaOptions{.decay = 0.7});
  trainer.add_callback(ema);
  trainer.fit();
  std::map<std::string, at::Tensor> average;
  for (const auto& [name, tensor] : ema->average()) {
    EXPECT_EQ(tensor.device().type(), device.type());
    average.emplace(name, tensor.cpu().clone());
  }
  // swap() exchanges, and a second call restores.
  const at::Tensor before = net->parameters()[0].detach().cpu().clone();
  simulated::reset_counts();
  ema->swap(*net);
  EXPECT_EQ(simulated::counts().all_waits(), 0);
  EXPECT_TRUE(at::equal(net->parameters()[0].detach().cpu(), average.at("0.weight")));
  EXPECT_TRUE(at::equal(ema->average().at("0.weight").cpu(), before));
  ema->swap(*net);
  EXPECT_TRUE(at::equal(net->parameters()[0].detach().cpu(), before));
  return average;
}

TEST(DeviceEma, EqualsTheCpu) {
  run_simulated_ranks({.size = 1}, [&](const Communicator& communicator, at::Device device) {
    const auto host = average_on(communicator, at::kCPU);
    const auto there = average_on(communicator, device);
    ASSERT_EQ(host.size(), there.size());
    for (const auto& [name, tensor] : host) EXPECT_TRUE(at::allclose(there.at(name), tensor, 1e-5, 1e-6)) << name;
  });
}

}  // namespace
}  // namespace tutti::test::device_ema_test
