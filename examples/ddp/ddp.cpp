// Gradient accumulation on one process, DistributedDataParallel on several processes and DataParallel on threads of one
// process end with the same parameters:
//
//   ddp --epochs 2 --batch_size 4 --data_size 8 --verbose --acc_steps 2
//   tutti launch -n 2 -- ddp --epochs 2 --distributed --batch_size 4 --data_size 8 --verbose
//   ddp --epochs 2 --data_parallel --replicas 2 --batch_size 8 --data_size 8 --verbose
//
// After "Multiple GPU training in PyTorch and Gradient Accumulation as an alternative to it" by Alexey Kravets.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <tutti/comm/communicator.h>
#include <tutti/core/environment.h>
#include <tutti/core/error.h>
#include <tutti/data/data_loader.h>
#include <tutti/data_parallel/data_parallel.h>
#include <tutti/sync/distributed_data_parallel.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <exception>
#include <iomanip>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "digest.h"

namespace {

struct Options {
  std::int64_t epochs = 1;
  std::int64_t batch_size = 4;  // of one rank; replicas share it
  std::int64_t data_size = 64;
  std::int64_t acc_steps = 1;
  double lr = 0.1;
  std::uint64_t seed = 0;
  bool distributed = false;
  bool data_parallel = false;
  int replicas = 2;
  bool verbose = false;
};

struct Batch {
  at::Tensor inputs;
  at::Tensor targets;
};

/// Points near a plane, equal in every run.
class Points {
 public:
  static constexpr std::int64_t dimensions = 10;

  Points(std::int64_t size, std::uint64_t seed) {
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    inputs_ = at::randn({size, dimensions}, generator);
    targets_ = inputs_.matmul(at::randn({dimensions, 1}, generator)) + 0.1 * at::randn({size, 1}, generator);
  }

  std::int64_t size() const { return inputs_.size(0); }
  Batch get_batch(const std::vector<std::size_t>& indices) const {
    const auto rows = at::tensor(std::vector<std::int64_t>(indices.begin(), indices.end()));
    return {inputs_.index_select(0, rows), targets_.index_select(0, rows)};
  }

 private:
  at::Tensor inputs_;
  at::Tensor targets_;
};

void print_parameters(const torch::nn::Linear& model) {
  std::cout << std::setprecision(9);  // enough digits to distinguish all floats
  for (const auto& item : model->named_parameters()) {
    std::cout << ' ' << item.key();
    for (std::int64_t i = 0; i < item->numel(); ++i) std::cout << ' ' << item->flatten()[i].item<float>();
  }
  std::cout << std::endl;
}

/// Returns the environment of one process, or of this rank if a launcher started it.
tutti::Communicator connect(const Options& options) {
  const auto environment = tutti::read_environment();
  if (options.distributed && environment.launcher == "none") {
    throw tutti::UsageError("--distributed needs a launcher: tutti launch -n 2 -- ddp --distributed ...");
  }
  if (!options.distributed && environment.world_size > 1) {
    throw tutti::UsageError("started on " + std::to_string(environment.world_size) + " ranks: add --distributed");
  }
  if (options.distributed && options.data_parallel) {
    throw tutti::UsageError("--distributed trains on ranks, --data_parallel on threads of one process: choose one");
  }
  if (options.batch_size * environment.world_size > options.data_size) {
    throw tutti::UsageError("--data_size " + std::to_string(options.data_size) +
                            " is too small: --batch_size times ranks is " +
                            std::to_string(options.batch_size * environment.world_size));
  }
  return options.distributed ? tutti::Communicator::connect(environment) : tutti::Communicator();
}

void train(const Options& options) {
  at::set_num_threads(1);  // several threads would split sums and round them differently
  const auto communicator = connect(options);

  torch::manual_seed(options.seed);
  torch::nn::Linear model(Points::dimensions, 1);
  std::optional<tutti::DistributedDataParallel> ddp;
  if (options.distributed) ddp.emplace(model, communicator);
  std::optional<tutti::DataParallel<torch::nn::LinearImpl>> replicas;
  if (options.data_parallel) replicas.emplace(model, tutti::DataParallelOptions{.replicas = options.replicas});
  torch::optim::SGD optimizer(model->parameters(), options.lr);

  // With blocks_by_window, steps read the same samples in the same order on any number of ranks.
  tutti::DataLoader loader(Points(options.data_size, options.seed),
                           {.batch_size = options.batch_size,
                            .shuffle = true,
                            .seed = options.seed,
                            .sharding = tutti::Sharding::blocks_by_window},
                           communicator.rank(), communicator.size(), options.acc_steps);

  for (std::int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    std::int64_t i = 0;
    for (const auto& batch : loader) {
      const bool steps_now = ++i % options.acc_steps == 0 || i == loader.size();
      const auto outputs = replicas ? replicas->forward(batch.inputs) : model(batch.inputs);
      const auto loss = at::mse_loss(outputs, batch.targets) / options.acc_steps;
      std::optional<tutti::NoSyncScope> local;
      if (ddp && !steps_now) local.emplace(ddp->no_sync());
      loss.backward();
      if (!steps_now) continue;
      optimizer.step();
      optimizer.zero_grad();
      if (options.verbose && communicator.rank() == 0) {
        std::cout << "epoch " << epoch << " batch " << i << ':';
        print_parameters(model);
      }
    }
  }

  if (communicator.rank() == 0) {
    std::cout << "final parameters:";
    print_parameters(model);
    std::cout << "digest " << digest(*model) << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Train a linear model with gradient accumulation or distributed data parallel", "ddp");
  const CLI::Range count(1, 1'000'000'000, "POSITIVE");
  app.add_option("--epochs", options.epochs, "Epochs")->check(count);
  app.add_option("--batch_size", options.batch_size, "Samples in a batch of a rank")->check(count);
  app.add_option("--data_size", options.data_size, "Number of samples")->check(count);
  app.add_option("--acc_steps", options.acc_steps, "Batches of a rank in an optimizer step")->check(count);
  app.add_option("--lr", options.lr, "Learning rate")->check(CLI::Range(0.0, 1e3, "NUMBER"));
  app.add_option("--seed", options.seed, "Seed of the data, its order and the initial parameters");
  app.add_flag("--distributed", options.distributed, "Train with the other ranks that the launcher started");
  app.add_flag("--data_parallel", options.data_parallel, "Split each batch over replicas on threads of this process");
  app.add_option("--replicas", options.replicas, "Replicas, with --data_parallel")->check(CLI::Range(1, 1'000));
  app.add_flag("--verbose", options.verbose, "Print the parameters after every step");
  try {
    app.parse(argc, argv);
    train(options);
    return 0;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    std::cerr << "ddp: " << error.what() << '\n';
    return 2;
  } catch (const std::exception& error) {
    const std::string message = error.what();
    std::cerr << "ddp: " << message.substr(0, message.find('\n')) << '\n';  // LibTorch appends a backtrace
    return 1;
  }
}
