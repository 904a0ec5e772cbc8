#pragma once
// Training of a small model on the device and on the CPU.
#include <torch/optim/adamw.h>

#include <functional>
#include <vector>

#include "gpu/device.h"
#include "support/ranks.h"
#include "support/training.h"
#include "tutti/train/accelerator.h"

namespace tutti::test::gpu {

constexpr double tolerance = 1e-4;  ///< relative, between device and CPU
constexpr int micro_batches = 2;

/// Optimizer steps `first` .. `last` - 1.
struct Steps {
  int first = 0;
  int last = 5;
  std::function<Batch(std::int64_t index)> batch_at;  ///< batch `index` of the job
  std::function<void()> after_step = [] {};
};

/// Batches that are copied to `on` when they are read.
inline std::function<Batch(std::int64_t)> batches_on(at::Device on) {
  return [on](std::int64_t index) {
    const Batch batch = batch_of(index);
    return Batch{.input = batch.input.to(on), .target = batch.target.to(on)};
  };
}

/// Trains on the batches of this rank. `model` maps inputs of 6 features to 3 outputs.
template <typename Model>
void run_steps(Accelerator& accelerator, Model& model, Optimizer& optimizer, const Steps& steps) {
  const int passes = accelerator.gradient_accumulation_steps();
  for (int step = steps.first; step < steps.last; ++step) {
    for (int i = 0; i < passes; ++i) {
      const auto window = accelerator.accumulate(model);
      const Batch batch = steps.batch_at((step * passes + i) * accelerator.num_processes() + accelerator.rank());
      accelerator.backward(accelerator.autocast([&] { return loss_of(model->forward(batch.input), batch.target); }));
      accelerator.clip_grad_norm_(model, 1.0);
      optimizer.step();
      optimizer.zero_grad();
    }
    steps.after_step();
  }
}

/// The parameters and buffers, copied to the CPU.
inline std::vector<at::Tensor> values_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : module.parameters()) values.push_back(parameter.detach().cpu().clone());
  for (const at::Tensor& buffer : module.buffers()) values.push_back(buffer.detach().cpu().to(at::kDouble));
  return values;
}

/// Trains an Mlp for 5 steps with AdamW, and returns its parameters.
inline std::vector<at::Tensor> train_mlp(Accelerator& accelerator, at::Device on) {
  Mlp net(3);
  net->to(on);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
  run_steps(accelerator, model, optimizer, {.batch_at = batches_on(on)});
  return values_of(*model);
}

/// Trains on `on` as a rank of `communicator`, and returns the trained values on the CPU.
using Train = std::function<std::vector<at::Tensor>(const Communicator& communicator, at::Device on)>;

/// In a rank of run_on_one_device(): trains on the device and on the CPU, and expects equal results up to rounding.
void expect_same_as_on_cpu(const Train& train);

/// Runs `program` on 2 processes that share the device. (Threads cannot share it: autograd runs the backward passes of
/// a process on one thread for each device, so a rank that waits for another in backward would block it.) Their sums
/// are staged; with TUTTI_TEST_NCCL they use NCCL.
std::vector<RankResult> run_on_one_device(const RankProgram& program);

/// The options of a rank of run_on_one_device(). With TUTTI_TEST_HOSTID_PER_RANK NCCL takes each rank for one on a host
/// of its own, so that it accepts one device for all.
CommunicatorOptions communication_on_one_device();

}  // namespace tutti::test::gpu
