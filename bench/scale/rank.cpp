#include "scale/rank.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <tutti/comm/communicator.h>
#include <tutti/sync/distributed_data_parallel.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>

#include "report/spread.h"

namespace tutti::bench {
namespace {

constexpr int width = 32;

int entries_of(const char* folder) {
  const std::filesystem::directory_iterator entries(folder);
  return static_cast<int>(std::distance(begin(entries), end(entries)));
}

Holdings own_holdings() {
  // Looking takes a descriptor too.
  return {.threads = entries_of("/proc/self/task"), .descriptors = entries_of("/proc/self/fd") - 1};
}

Holdings most_of(const Communicator& communicator, const Holdings& own) {
  std::array<std::int64_t, 2> most{own.threads, own.descriptors};
  communicator.all_reduce(at::from_blob(most.data(), {2}, at::kLong), ReduceOp::max).wait();
  return {.threads = static_cast<int>(most[0]), .descriptors = static_cast<int>(most[1])};
}

}  // namespace

int run_scale_rank(const ScaleOptions& options, const Environment& environment) {
  std::optional<Communicator> communicator;
  if (!options.alone) communicator = Communicator::connect(environment, {.engine = options.engine});
  torch::nn::Linear model(width, 1);
  std::optional<DistributedDataParallel> synchronized;
  if (communicator) synchronized.emplace(*model, *communicator);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (int step = 0; step < options.steps; ++step) {
    at::mse_loss(model->forward(at::randn({4, width})), at::randn({4, 1})).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  Holdings most = own_holdings();
  if (communicator) most = most_of(*communicator, most);
  if (environment.rank == 0 && !options.results.empty()) {
    write_file(options.results, std::to_string(most.threads) + " " + std::to_string(most.descriptors));
  }
  return 0;
}

Holdings read_holdings(const std::string& file) {
  Holdings holdings;
  std::ifstream in(file);
  if (!(in >> holdings.threads >> holdings.descriptors)) throw std::runtime_error("rank 0 left no figures");
  return holdings;
}

}  // namespace tutti::bench
