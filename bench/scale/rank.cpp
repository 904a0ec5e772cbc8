#include "scale/rank.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <tutti/comm/communicator.h>
#include <tutti/sync/distributed_data_parallel.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

namespace tutti::bench {
namespace {

constexpr int width = 32;
constexpr int layer_width = 8192;
constexpr std::int64_t layer_bytes = std::int64_t{width} * layer_width * 4;

/// A few numbers, behind layers of 1 MiB that have about so many bytes of gradients.
torch::nn::Sequential toy_model(std::int64_t gradients) {
  torch::nn::Sequential model;
  const auto add_layer = [&](int from, int to) {
    model->push_back(torch::nn::Linear(torch::nn::LinearOptions(from, to).bias(false)));
  };
  for (std::int64_t bytes = 2 * layer_bytes; bytes <= gradients; bytes += 2 * layer_bytes) {
    add_layer(width, layer_width);
    add_layer(layer_width, width);
  }
  model->push_back(torch::nn::Linear(width, 1));
  return model;
}

std::int64_t entries_of(const char* folder) {
  const std::filesystem::directory_iterator entries(folder);
  return std::distance(begin(entries), end(entries));
}

std::int64_t bytes_of_page_tables() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::int64_t kilobytes = 0;
    if (word == "VmPTE:" && status >> kilobytes) return kilobytes << 10;
  }
  return 0;
}

Holdings own_holdings() {
  // Looking takes a descriptor too.
  return {.threads = entries_of("/proc/self/task"),
          .descriptors = entries_of("/proc/self/fd") - 1,
          .page_tables = bytes_of_page_tables()};
}

Holdings most_of(const Communicator& communicator, const Holdings& own) {
  std::array<std::int64_t, 3> most{own.threads, own.descriptors, own.page_tables};
  communicator.all_reduce(at::from_blob(most.data(), {3}, at::kLong), ReduceOp::max).wait();
  return {.threads = most[0], .descriptors = most[1], .page_tables = most[2]};
}

/// Processes that live at a time need more memory than those that follow one another, and to get it costs CPU too.
void wait_until_all_are_here(const std::string& file, int world_size) {
  std::ofstream(file, std::ios::app) << '.';
  while (std::filesystem::file_size(file) < static_cast<std::uintmax_t>(world_size)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace

int run_scale_rank(const ScaleOptions& options, const Environment& environment) {
  std::optional<Communicator> communicator;
  if (!options.alone) communicator = Communicator::connect(environment, {.engine = options.engine});
  torch::nn::Sequential model = toy_model(options.gradients);
  std::optional<DistributedDataParallel> synchronized;
  if (communicator) synchronized.emplace(*model, *communicator);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (int step = 0; step < options.steps; ++step) {
    at::mse_loss(model->forward(at::randn({4, width})), at::randn({4, 1})).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  Holdings most = own_holdings();
  if (communicator) {
    most = most_of(*communicator, most);
  } else if (!options.results.empty()) {
    wait_until_all_are_here(options.results, environment.world_size);
  }
  if (environment.rank == 0 && !options.results.empty()) {
    std::ofstream(options.results, std::ios::app) << '\n'
                                                  << most.threads << ' ' << most.descriptors << ' ' << most.page_tables;
  }
  return 0;
}

Holdings read_holdings(const std::string& file) {
  Holdings holdings;
  std::ifstream in(file);
  in.ignore(std::numeric_limits<std::streamsize>::max(), '\n');  // marks of those that came
  if (!(in >> holdings.threads >> holdings.descriptors >> holdings.page_tables))
    throw std::runtime_error("rank 0 left no figures");
  return holdings;
}

}  // namespace tutti::bench
