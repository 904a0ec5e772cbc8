// The same training with six ways to synchronize gradients (docs/guides/gradient_accumulation.md). All end with the
// same parameters, up to rounding; they differ in the number of synchronizations.
//
//   tutti launch -n 2 -- guide_gradient_accumulation
#include <torch/nn/functional/loss.h>
#include <torch/nn/utils/convert_parameters.h>
#include <torch/optim/sgd.h>
#include <tutti/comm/communicator.h>
#include <tutti/train/accelerator.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <iostream>
#include <optional>
#include <string>

#include "guides/toy.h"

namespace {

constexpr std::int64_t batches = 29;  // of each rank
constexpr std::int64_t steps = 4;     // micro-batches in an optimizer step; the last step has one

struct Run {
  tutti::Accelerator& accelerator;
  torch::nn::Sequential& model;
  tutti::Optimizer& optimizer;
  tutti::DataLoader<toy::Points>& loader;
};

at::Tensor loss_of(torch::nn::Sequential& model, const torch::data::Example<>& batch) {
  return torch::mse_loss(model->forward(batch.data), batch.target);
}

/// A loop that divides and steps itself. The arguments place no_sync around passes that are not the last of a step.
void plain_loop(const Run& run, bool no_sync_forward, bool no_sync_backward) {
  std::int64_t i = 0;
  for (auto& batch : run.loader) {
    const std::int64_t in_this_step = std::min(steps, batches - i / steps * steps);
    const bool last = ++i % steps == 0 || i == batches;
    std::optional<tutti::NoSyncScope> local;
    if (no_sync_forward && !last) local.emplace(run.accelerator.no_sync(run.model));
    const auto loss = loss_of(run.model, batch) / in_this_step;
    if (!no_sync_forward && no_sync_backward && !last) local.emplace(run.accelerator.no_sync(run.model));
    loss.backward();
    if (!last) continue;
    run.optimizer.step();
    run.optimizer.zero_grad();
  }
}

void accumulate_loop(const Run& run) {
  for (auto& batch : run.loader) {
    const auto window = run.accelerator.accumulate(run.model);
    run.accelerator.backward(loss_of(run.model, batch));
    run.optimizer.step();
    run.optimizer.zero_grad();
  }
}

/// The losses are sums over samples; the scope gets the number of samples.
void weighted_loop(const Run& run) {
  for (auto& batch : run.loader) {
    const auto window = run.accelerator.accumulate(run.model, {.weight = static_cast<double>(batch.target.size(0))});
    const auto sum = torch::mse_loss(run.model->forward(batch.data), batch.target, at::Reduction::Sum);
    run.accelerator.backward(sum);
    run.optimizer.step();
    run.optimizer.zero_grad();
  }
}

/// Trains a fresh model for three epochs. Prints its synchronizations and the distance to `expected`. Returns the
/// parameters.
at::Tensor train(const tutti::Communicator& communicator, const std::string& name, tutti::SyncPolicy policy,
                 int accumulation, const std::function<void(const Run&)>& loop, const at::Tensor& expected = {}) {
  tutti::Accelerator accelerator({.gradient_accumulation_steps = accumulation,
                                  .sync_policy = policy,
                                  .communicator = communicator.duplicate(name)});
  auto loader = accelerator.data_loader(toy::Points(batches * 4 * accelerator.num_processes()), {.batch_size = 4});
  auto net = toy::make_net();
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.05));
  for (int epoch = 0; epoch < 3; ++epoch) loop({accelerator, model, optimizer, loader});
  const auto stats = accelerator.stats();
  const at::Tensor parameters = torch::nn::utils::parameters_to_vector(model->parameters()).detach();
  const double difference = expected.defined() ? (parameters - expected).abs().max().item<double>() : 0;
  accelerator.print(name + ": " + std::to_string(stats.passes) + " backward passes, " + std::to_string(stats.syncs) +
                    " exchanges, parameters differ by " + std::to_string(difference));
  return parameters;
}

}  // namespace

int main() {
  try {
    at::set_num_threads(1);
    const auto communicator = tutti::Communicator::connect(tutti::read_environment());
    const auto plain = [](bool around_forward, bool around_backward) {
      return [=](const Run& run) { plain_loop(run, around_forward, around_backward); };
    };
    const auto expected = train(communicator, "every pass", tutti::SyncPolicy::every_pass, 1, plain(false, false));
    const auto compare = [&](const std::string& name, tutti::SyncPolicy policy, int accumulation, const auto& loop) {
      train(communicator, name, policy, accumulation, loop, expected);
    };
    compare("no_sync around backward alone", tutti::SyncPolicy::manual, 1, plain(false, true));
    compare("no_sync around forward and backward", tutti::SyncPolicy::manual, 1, plain(true, true));
    compare("accumulate", tutti::SyncPolicy::automatic, steps, accumulate_loop);
    compare("accumulate by weight", tutti::SyncPolicy::automatic, steps, weighted_loop);
    compare("a plain loop", tutti::SyncPolicy::automatic, 1, plain(false, false));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "gradient_accumulation: " << error.what() << '\n';
    return 1;
  }
}
