// One process with whole batches, accumulation, DataParallel and DistributedDataParallel end with the same parameters
// (docs/guides/same_result.md). This program runs all four in turn, the last on all ranks of the job.
//
//   tutti launch -n 2 -- guide_same_result
#include <ATen/Parallel.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>
#include <tutti/comm/communicator.h>
#include <tutti/data/data_loader.h>
#include <tutti/data_parallel/data_parallel.h>
#include <tutti/sync/distributed_data_parallel.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "guides/toy.h"

namespace {

constexpr std::int64_t samples = 96;
constexpr std::int64_t batch_size = 24;  // of a step, on any number of ranks that divides 24

using Batch = torch::data::Example<>;

struct Training {
  torch::nn::Sequential net = toy::make_net();
  torch::optim::Adam optimizer{net->parameters(), 1e-2};

  /// Runs four epochs of `loader`.
  template <typename Step>
  std::vector<at::Tensor> run(tutti::DataLoader<toy::Points> loader, Step step) {
    for (int epoch = 0; epoch < 4; ++epoch) {
      for (auto& batch : loader) step(batch);
    }
    return net->parameters();
  }
  void step() {
    optimizer.step();
    optimizer.zero_grad();
  }
};

std::vector<at::Tensor> one_process() {
  Training training;
  return training.run({toy::Points(samples), {.batch_size = batch_size}}, [&](const Batch& batch) {
    torch::mse_loss(training.net->forward(batch.data), batch.target).backward();
    training.step();
  });
}

std::vector<at::Tensor> accumulation(int micro_batches) {
  Training training;
  int i = 0;
  return training.run({toy::Points(samples), {.batch_size = batch_size / micro_batches}}, [&](const Batch& batch) {
    const auto loss = torch::mse_loss(training.net->forward(batch.data), batch.target);
    (loss / micro_batches).backward();  // the mean over the step's micro-batches
    if (++i % micro_batches == 0) training.step();
  });
}

std::vector<at::Tensor> data_parallel(int replicas) {
  Training training;
  tutti::DataParallel<torch::nn::SequentialImpl> model(training.net, {.replicas = replicas});
  return training.run({toy::Points(samples), {.batch_size = batch_size}}, [&](const Batch& batch) {
    torch::mse_loss(model.forward(batch.data), batch.target).backward();  // the outputs of all replicas together
    training.step();
  });
}

std::vector<at::Tensor> distributed(const tutti::Communicator& communicator) {
  Training training;
  tutti::DistributedDataParallel ddp(training.net, communicator);
  return training.run({toy::Points(samples),
                       {.batch_size = batch_size / communicator.size()},
                       communicator.rank(),
                       communicator.size()},
                      [&](const Batch& batch) {
                        torch::mse_loss(training.net->forward(batch.data), batch.target).backward();
                        training.step();  // on the mean over ranks
                      });
}

double largest_difference(const std::vector<at::Tensor>& some, const std::vector<at::Tensor>& others) {
  double largest = 0;
  for (std::size_t i = 0; i < some.size(); ++i) {
    largest = std::max(largest, (some[i] - others[i]).abs().max().item<double>());
  }
  return largest;
}

}  // namespace

int main() {
  try {
    at::set_num_threads(1);
    const auto communicator = tutti::Communicator::connect(tutti::read_environment());
    if (batch_size % communicator.size() != 0) {
      throw tutti::UsageError("a step has " + std::to_string(batch_size) + " samples, which " +
                              std::to_string(communicator.size()) +
                              " ranks cannot share equally: use a number of ranks that divides it");
    }
    const auto expected = one_process();
    const auto report = [&](const std::string& name, const std::vector<at::Tensor>& parameters) {
      if (communicator.rank() != 0) return;
      std::cout << name << ": parameters differ by at most " << largest_difference(parameters, expected) << std::endl;
    };
    report("accumulation of 3", accumulation(3));
    report("DataParallel on 2 threads", data_parallel(2));
    report("DistributedDataParallel on " + std::to_string(communicator.size()) + " ranks", distributed(communicator));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "same_result: " << error.what() << '\n';
    return 1;
  }
}
