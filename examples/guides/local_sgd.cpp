// Synchronous training, Local SGD and DiLoCo on the same data: where the held-out loss ends, how much is sent, and
// which interval would suit this machine (docs/guides/local_sgd.md).
//
//   tutti launch -n 2 -- guide_local_sgd
#include <ATen/Parallel.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>
#include <tutti/comm/communicator.h>
#include <tutti/train/accelerator.h>
#include <tutti/train/local_sgd.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>

#include "guides/toy.h"

namespace {

using Seconds = std::chrono::duration<double>;

double held_out_loss(tutti::Accelerator& accelerator, torch::nn::Sequential& model) {
  const torch::NoGradGuard no_grad;
  const toy::Points unseen(512, 7);
  std::vector<std::size_t> all(unseen.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  const auto batch = unseen.get_batch(all);
  const auto loss = torch::mse_loss(model->forward(batch.data), batch.target);
  return accelerator.reduce(loss, tutti::ReduceOp::mean).item<double>();
}

void train(const tutti::Communicator& communicator, const std::string& name, const tutti::LocalSGDOptions& options) {
  tutti::Accelerator accelerator({.communicator = communicator.duplicate(name)});
  auto loader = accelerator.data_loader(toy::Points(2048), {.batch_size = 16, .shuffle = true});
  auto net = toy::make_net();
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-2));
  tutti::LocalSGD local_sgd(accelerator, model, options);
  std::int64_t steps = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (int epoch = 0; epoch < 6; ++epoch) {
    for (auto& batch : loader) {
      accelerator.backward(torch::mse_loss(model->forward(batch.data), batch.target));
      optimizer.step();
      optimizer.zero_grad();
      local_sgd.step();
      ++steps;
    }
  }
  local_sgd.finish();  // all ranks hold the same model again
  const double seconds = Seconds(std::chrono::steady_clock::now() - begin).count();
  const double loss = held_out_loss(accelerator, model);

  const auto stats = local_sgd.stats();
  std::ostringstream line;
  line << name << ": held-out loss " << loss << ", " << (stats.bytes_sent + accelerator.stats().bytes_sent) / 1000
       << " kB sent by this rank, " << seconds << " s";
  if (stats.rounds > 0) {
    // An interval of k steps spends exchange / (k step) of the time on exchanges; a tenth is a good start.
    const double exchange = stats.seconds_exchanging / static_cast<double>(stats.rounds);
    const double step = (seconds - stats.seconds_blocked) / static_cast<double>(steps);
    line << "; an exchange takes " << 1e6 * exchange << " us, a step " << 1e6 * step
         << " us: with k = " << std::max(1.0, std::ceil(10 * exchange / step))
         << " a tenth of the time goes into exchanges";
  }
  accelerator.print(line.str());
}

}  // namespace

int main() {
  try {
    at::set_num_threads(1);
    const auto communicator = tutti::Communicator::connect(tutti::read_environment());
    train(communicator, "synchronous", {.enabled = false});
    train(communicator, "Local SGD", {.local_sgd_steps = 8});
    train(communicator, "DiLoCo",
          {.local_sgd_steps = 8,
           .algorithm = {.outer_optimizer = tutti::OuterOptimizer::diloco,
                         .diloco = {.lr = 0.7, .momentum = 0.6},
                         .wire = tutti::WireFormat::bf16}});
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "local_sgd: " << error.what() << '\n';
    return 1;
  }
}
