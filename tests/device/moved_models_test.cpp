// Ranks: 1 and 2 as threads, each with simulated devices. Models that move between devices, or stay on the CPU.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "support/difference.h"
#include "support/simulated_device/ranks.h"
#include "support/training.h"
#include "tutti/tutti.h"

namespace tutti::device_moved_models_test {
namespace {

namespace simulated = test::simulated;
using test::run_simulated_ranks;

constexpr int ranks = 2;

/// The device `number` of a rank.
at::Device device_of(const Communicator& communicator, int number) {
  return {simulated::type, static_cast<at::DeviceIndex>(communicator.rank() + number * ranks)};
}

struct Training {
  Training(const Communicator& communicator, std::shared_ptr<torch::optim::Optimizer> made, test::Mlp model)
      : accelerator({.communicator = communicator}), net(model), optimizer(made) {}
  void move_and_step(at::Device device, int steps) {
    net->to(device);
    auto [model, prepared] = accelerator.prepare(net, *optimizer);
    for (int step = 0; step < steps; ++step) {
      const test::Batch batch = test::batch_of(accelerator.rank() + step);
      const auto window = accelerator.accumulate(model);
      accelerator.backward(test::loss_of(model->forward(batch.input.to(device)), batch.target.to(device)));
      prepared.step();
      prepared.zero_grad();
    }
  }
  std::vector<at::Tensor> parameters_on_host() const {
    std::vector<at::Tensor> parameters;
    for (const at::Tensor& parameter : net->parameters()) parameters.push_back(parameter.detach().to(at::kCPU));
    return parameters;
  }

  Accelerator accelerator;
  test::Mlp net;
  std::shared_ptr<torch::optim::Optimizer> optimizer;
};

template <typename Optimizer>
void expect_same_as_on_the_cpu(int size) {
  // The simulated NCCL serves one device of a rank.
  const test::SimulatedRanks on_any_device{.size = size, .backend = "staged", .c10d_backend = false};
  run_simulated_ranks(on_any_device, [](const Communicator& communicator, at::Device) {
    const auto train = [&communicator](const std::vector<at::Device>& devices) {
      const test::Mlp net;
      // Adagrad has state from its constructor on.
      Training training(communicator, std::make_shared<Optimizer>(net->parameters(), 0.01), net);
      for (const at::Device device : devices) training.move_and_step(device, 3);
      return training.parameters_on_host();
    };
    const at::Device cpu = at::kCPU, first = device_of(communicator, 0), second = device_of(communicator, 1);
    const auto expected = train({cpu, cpu, cpu, cpu});
    const auto actual = train({first, second, cpu, first});
    EXPECT_LT(test::largest_difference(actual, expected), 1e-5);
    for (const at::Tensor& parameter : actual) {
      const at::Tensor copy = parameter.clone();
      communicator.broadcast(copy).wait();
      EXPECT_TRUE(at::equal(copy, parameter)) << "ranks differ";
    }
  });
}

TEST(MovedModels, TheStateOfTheOptimizerFollowsOnAllRanks) {
  for (const int size : {1, ranks}) {
    SCOPED_TRACE(size);
    expect_same_as_on_the_cpu<torch::optim::AdamW>(size);
    expect_same_as_on_the_cpu<torch::optim::Adagrad>(size);
  }
}

/// What prepare() writes to standard error for a model on `place`.
std::string said_by_prepare(at::Device of_batches, at::Device place) {
  Accelerator accelerator({.device = of_batches, .communicator = Communicator()});
  testing::internal::CaptureStderr();
  test::Mlp net, on_cpu;
  net->to(place);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  accelerator.prepare(optimizer);                        // no second warning
  if (place == of_batches) accelerator.prepare(on_cpu);  // a program may have models on both
  return testing::internal::GetCapturedStderr();
}

TEST(MovedModels, AModelThatWasNotMovedIsWarnedOf) {
  const at::Device device(simulated::type, 0);
  const std::string said = said_by_prepare(device, at::kCPU);
  EXPECT_NE(said.find("warning: prepare(): the model is on cpu, but batches are moved to " + device.str()),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("model->to(accelerator.device())"), std::string::npos) << said;
  EXPECT_EQ(said.find("warning"), said.rfind("warning")) << said;
  EXPECT_EQ(said_by_prepare(device, device), "");
  EXPECT_EQ(said_by_prepare(at::kCPU, at::kCPU), "");
}

}  // namespace
}  // namespace tutti::device_moved_models_test
