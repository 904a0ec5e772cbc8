#include "scale/rank.h"

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <sys/resource.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <tutti/comm/communicator.h>
#include <tutti/sync/distributed_data_parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "scale/cpu_time.h"
#include "scale/forked_ranks.h"

namespace tutti::bench {
namespace {

constexpr int width = 32;
constexpr int layer_width = 8192;
constexpr std::int64_t layer_bytes = std::int64_t{width} * layer_width * 4;

/// A model with a few parameters and layers of 1 MiB each, about `gradients` bytes in total.
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

/// CPU seconds of this process so far.
double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  return seconds_of(used.ru_utime) + seconds_of(used.ru_stime);
}

ResourceUsage current_usage() {
  // Listing /proc/self/fd opens one descriptor.
  return {.threads = entries_of("/proc/self/task"),
          .descriptors = entries_of("/proc/self/fd") - 1,
          .page_tables = bytes_of_page_tables()};
}

/// Waits for all ranks, so that all processes hold their memory at the same time, as connected ranks do.
void wait_until_all_are_here(const std::string& file, int world_size) {
  std::ofstream(file, std::ios::app) << '.';
  while (std::filesystem::file_size(file) < static_cast<std::uintmax_t>(world_size)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

ResourceUsage train(const ScaleOptions& options, const Environment& environment) {
  std::optional<Communicator> communicator;
  if (!options.alone) communicator = Communicator::connect(environment, {.backend = options.backend});
  torch::nn::Sequential model = toy_model(options.gradients);
  std::optional<DistributedDataParallel> synchronized;
  if (communicator) synchronized.emplace(*model, *communicator);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (int step = 0; step < options.steps; ++step) {
    at::mse_loss(model->forward(at::randn({4, width})), at::randn({4, 1})).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  const ResourceUsage usage = current_usage();
  if (!communicator && !options.results.empty()) wait_until_all_are_here(options.results, environment.world_size);
  return usage;
}

/// Writes the line in one call, so that the lines of several ranks do not mix.
void append_usage(const std::string& file, const ResourceUsage& usage) {
  std::ostringstream line;
  line << '\n' << usage.threads << ' ' << usage.descriptors << ' ' << usage.page_tables << ' ' << usage.cpu;
  std::ofstream(file, std::ios::app) << line.str();
}

int run_rank(const ScaleOptions& options, const Environment& environment) {
  const double cpu_before = cpu_seconds();
  ResourceUsage usage = train(options, environment);
  usage.cpu = cpu_seconds() - cpu_before;
  if (!options.results.empty()) append_usage(options.results, usage);
  return 0;
}

/// Returns the environment of one of the `forks` ranks of this process's node.
Environment forked(Environment environment, int forks, int local_rank) {
  environment.world_size *= forks;
  environment.rank = environment.rank * forks + local_rank;
  environment.local_world_size = forks;
  environment.local_rank = local_rank;
  if (environment.rank != 0) environment.master_listen_fd.reset();
  return environment;
}

}  // namespace

int run_scale_rank(const ScaleOptions& options, const Environment& environment) {
  if (options.forks == 0) return run_rank(options, environment);
  return run_forked(options.forks,
                    [&](int local_rank) { return run_rank(options, forked(environment, options.forks, local_rank)); });
}

ResourceUsage read_usage(const std::string& file, int ranks) {
  ResourceUsage all;
  std::ifstream in(file);
  in.ignore(std::numeric_limits<std::streamsize>::max(), '\n');  // the marks of wait_until_all_are_here()
  for (int rank = 0; rank < ranks; ++rank) {
    ResourceUsage one;
    if (!(in >> one.threads >> one.descriptors >> one.page_tables >> one.cpu)) {
      throw std::runtime_error(std::to_string(rank) + " of " + std::to_string(ranks) + " ranks wrote their usage");
    }
    all.threads = std::max(all.threads, one.threads);
    all.descriptors = std::max(all.descriptors, one.descriptors);
    all.page_tables = std::max(all.page_tables, one.page_tables);
    all.cpu += one.cpu;
  }
  return all;
}

}  // namespace tutti::bench
