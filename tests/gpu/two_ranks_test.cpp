// Ranks: 2 as processes, on one device.
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/sgd.h>

#include <iostream>

#include "gpu/training.h"
#include "tutti/sync/sync_batch_norm.h"
#include "tutti/train/local_sgd.h"

namespace tutti::test::two_ranks_test {
namespace {

using gpu::device;

const RankProgram train_as_on_the_cpu("train_as_on_the_cpu", [] {
  gpu::expect_same_as_on_cpu([](const Communicator& communicator, at::Device on) {
    Accelerator accelerator({.gradient_accumulation_steps = gpu::micro_batches, .communicator = communicator});
    const auto parameters = gpu::train_mlp(accelerator, on);
    const at::Tensor of_ranks = accelerator.gather(parameters.front().flatten().unsqueeze(0));
    for (int rank = 0; rank < communicator.size(); ++rank) EXPECT_TRUE(at::equal(of_ranks[rank], of_ranks[0]));
    return parameters;
  });
});

TEST(TwoRanks, TrainAsOnTheCpu) {
  const auto results = gpu::run_on_one_device(train_as_on_the_cpu);
  expect_success(results);
  std::cout << results.at(0).output;
}

const RankProgram reduces_and_gathers("reduces_and_gathers", [] {
  Accelerator accelerator({.device = device(), .communication = gpu::communication_on_one_device()});
  const at::Tensor value = at::full({2}, accelerator.rank() + 1.0, at::TensorOptions(at::kFloat).device(device()));
  EXPECT_TRUE(at::equal(accelerator.reduce(value, ReduceOp::sum).cpu(), at::tensor({3.F, 3.F})));
  EXPECT_TRUE(at::equal(accelerator.gather(value).cpu(), at::tensor({1.F, 1.F, 2.F, 2.F})));
  EXPECT_TRUE(at::equal(accelerator.broadcast(value).cpu(), at::tensor({1.F, 1.F})));
});

TEST(TwoRanks, ReduceAndGatherDeviceTensors) {
  expect_success(gpu::run_on_one_device(reduces_and_gathers));
}

const RankProgram sync_batch_norm("sync_batch_norm", [] {
  gpu::expect_same_as_on_cpu([](const Communicator& communicator, at::Device on) {
    Accelerator accelerator({.communicator = communicator});
    torch::nn::Sequential net(torch::nn::Linear(6, 8), SyncBatchNorm(torch::nn::BatchNormOptions(8), communicator),
                              torch::nn::Tanh(), torch::nn::Linear(8, 3));
    fill(*net, 3);
    net->to(on);
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.01));
    gpu::run_steps(accelerator, model, optimizer, {.batch_at = gpu::batches_on(on)});
    return gpu::values_of(*model);
  });
});

TEST(Extras, SyncBatchNormTrainsAsOnTheCpu) {
  expect_success(gpu::run_on_one_device(sync_batch_norm));
}

void expect_local_sgd_as_on_cpu(const LocalSGDOptions& options) {
  gpu::expect_same_as_on_cpu([&](const Communicator& communicator, at::Device on) {
    Accelerator accelerator({.communicator = communicator});
    Mlp net(3);
    net->to(on);
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.05));
    LocalSGD averages(accelerator, model, options);
    gpu::run_steps(accelerator, model, optimizer,
                   {.last = 6, .batch_at = gpu::batches_on(on), .after_step = [&] { averages.step(); }});
    averages.finish();
    return gpu::values_of(*model);
  });
}

const RankProgram local_sgd("local_sgd", [] { expect_local_sgd_as_on_cpu({.local_sgd_steps = 2}); });

TEST(Extras, LocalSgdTrainsAsOnTheCpu) {
  expect_success(gpu::run_on_one_device(local_sgd));
}

const RankProgram diloco("diloco", [] {
  expect_local_sgd_as_on_cpu(
      {.local_sgd_steps = 2, .algorithm = {.outer_optimizer = OuterOptimizer::diloco, .wire = WireFormat::bf16}});
});

TEST(Extras, DiLoCoInBf16TrainsAsOnTheCpu) {
  expect_success(gpu::run_on_one_device(diloco));
}

std::vector<at::Tensor> train_reproducibly(const Communicator& communicator) {
  constexpr int all_passes = 4;
  Accelerator accelerator(
      {.reproducible = ReproducibleOptions{.micro_batches = all_passes}, .communicator = communicator});
  Mlp net(3);
  net->to(device());
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
  // Rank r runs block r of a step's micro-batches.
  const int passes = accelerator.gradient_accumulation_steps();
  const auto batch_at = [&, on_device = gpu::batches_on(device())](std::int64_t index) {
    const std::int64_t pass = index / communicator.size();
    return on_device(pass / passes * all_passes + communicator.rank() * passes + pass % passes);
  };
  gpu::run_steps(accelerator, model, optimizer, {.last = 3, .batch_at = batch_at});
  return gpu::values_of(*model);
}

const RankProgram reproducible("reproducible", [] {
  CommunicatorOptions options{.backend = "staged", .device = device()};
  const auto communicator = Communicator::connect(read_environment(), options);
  EXPECT_TRUE(close(train_reproducibly(communicator), train_reproducibly(Communicator()), 0));
});

TEST(Extras, ReproducibleTrainingHasTheSameBitsOnOneAndTwoRanks) {
  expect_success(gpu::run_on_one_device(reproducible));
}

}  // namespace
}  // namespace tutti::test::two_ranks_test
