// Ranks: 1 and 2 as processes, each with its own CUDA device, or on one device. Skipped on machines with fewer devices.
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <csignal>

#include "support/ranks.h"
#include "support/training.h"
#include "tutti/core/environment.h"
#include "tutti/core/error.h"
#include "tutti/train/accelerator.h"

namespace tutti::test::cuda_test {
namespace {

constexpr int steps = 5;
constexpr int micro_batches = 2;

void skip_without(int devices) {
  const int there = at::hasCUDA() ? at::detail::getCUDAHooks().deviceCount() : 0;
  if (there < devices) GTEST_SKIP() << devices << " CUDA devices are needed, there are " << there;
}

/// Trains on `device` as one rank of the job, and returns the parameters on the CPU.
std::vector<at::Tensor> train(Accelerator& accelerator, at::Device device) {
  Mlp net;
  fill(*net, 3);
  net->to(device);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
  const int ranks = accelerator.num_processes();
  for (int step = 0; step < steps; ++step) {
    for (int i = 0; i < micro_batches; ++i) {
      const auto scope = accelerator.accumulate(model);
      const Batch batch = batch_of((step * micro_batches + i) * ranks + accelerator.rank());
      accelerator.backward(loss_of(model->forward(batch.input.to(device)), batch.target.to(device)));
      accelerator.clip_grad_norm_(model->parameters(), 1.0);
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& parameter : model->parameters()) parameters.push_back(parameter.detach().cpu());
  return parameters;
}

// Every rank also trains on the CPU, over the same job's backend: both must agree.
const RankProgram same_as_on_the_cpu("same_as_on_the_cpu", [] {
  Accelerator on_cuda({.gradient_accumulation_steps = micro_batches, .device = at::kCUDA});
  EXPECT_TRUE(on_cuda.device().is_cuda());
  EXPECT_EQ(on_cuda.device().index(), on_cuda.local_process_index());
  const auto there = train(on_cuda, on_cuda.device());
  Accelerator on_cpu({.gradient_accumulation_steps = micro_batches, .communicator = on_cuda.communicator()});
  EXPECT_TRUE(close(there, train(on_cpu, at::kCPU), 1e-4));
  const auto of_ranks = on_cuda.gather(there.front().flatten().unsqueeze(0));
  for (int rank = 0; rank < on_cuda.num_processes(); ++rank) EXPECT_TRUE(at::equal(of_ranks[rank], of_ranks[0]));
});

TEST(Cuda, OneRankTrainsAsOnTheCpu) {
  skip_without(1);
  if (!IsSkipped()) expect_success(run_processes(same_as_on_the_cpu, 1));
}

TEST(Cuda, TwoRanksTrainAsOnTheCpu) {
  skip_without(2);
  if (!IsSkipped()) expect_success(run_processes(same_as_on_the_cpu, 2));
}

// NCCL refuses two ranks on one device, so they exchange gradients through CPU memory.
const RankProgram shares_a_device("shares_a_device", [] {
  Accelerator on_cuda({.gradient_accumulation_steps = micro_batches, .device = at::Device(at::kCUDA, 0)});
  EXPECT_TRUE(on_cuda.communicator().backend_name().starts_with("staged + "));
  const auto there = train(on_cuda, on_cuda.device());
  Accelerator on_cpu({.gradient_accumulation_steps = micro_batches, .communicator = on_cuda.communicator()});
  EXPECT_TRUE(close(there, train(on_cpu, at::kCPU), 1e-4));
  EXPECT_THROW(Communicator::connect(read_environment(), {.backend = "nccl", .device = at::Device(at::kCUDA, 0)}),
               UsageError);
});

TEST(Cuda, TwoRanksOnOneDeviceTrainAsOnTheCpu) {
  skip_without(1);
  if (!IsSkipped()) expect_success(run_processes(shares_a_device, 2));
}

const RankProgram exits_between_steps("exits_between_steps", [] {
  Accelerator accelerator({.device = at::kCUDA});
  Mlp net;
  net->to(accelerator.device());
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
  const auto pass = [&] {
    const Batch batch = batch_of(0);
    accelerator.backward(
        loss_of(model->forward(batch.input.to(accelerator.device())), batch.target.to(accelerator.device())));
    optimizer.step();
  };
  pass();
  if (accelerator.rank() == 1) std::raise(SIGKILL);
  try {
    pass();
    ADD_FAILURE() << "no error";
  } catch (const PeerError& failure) {
    EXPECT_EQ(failure.ranks(), std::vector<int>{1});
  }
});

TEST(Cuda, AFailedRankIsNamed) {
  skip_without(2);
  if (IsSkipped()) return;
  const auto results = run_processes(exits_between_steps, 2);
  EXPECT_EQ(results[0].exit_code, 0) << results[0].output;
  EXPECT_EQ(results[1].signal, SIGKILL);
}

}  // namespace
}  // namespace tutti::test::cuda_test
