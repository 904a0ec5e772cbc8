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
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "report/results.h"
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

double entries_of(const char* folder) {
  const std::filesystem::directory_iterator entries(folder);
  return static_cast<double>(std::distance(begin(entries), end(entries)));
}

double bytes_of_page_tables() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    double kilobytes = 0;
    if (word == "VmPTE:" && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

double seconds_of(const timeval& time) {
  constexpr double microsecond = 1e-6;
  return static_cast<double>(time.tv_sec) + microsecond * static_cast<double>(time.tv_usec);
}

CpuSeconds cpu_of(int processes) {
  rusage used{};
  ::getrusage(processes, &used);
  const double kernel = seconds_of(used.ru_stime);
  return {.all = seconds_of(used.ru_utime) + kernel, .kernel = kernel};
}

ResourceUsage current_usage() {
  // Listing /proc/self/fd opens one descriptor.
  return {.threads = entries_of("/proc/self/task"),
          .descriptors = entries_of("/proc/self/fd") - 1,
          .page_tables = bytes_of_page_tables()};
}

/// Waits for all ranks, so that all processes hold their memory at the same time, as connected ranks do.
void wait_until_all_are_here(const std::string& file, int world_size) {
  const Labels mark = "ready";
  append_line(file, mark);
  while (std::filesystem::file_size(file) < (mark.dump().size() + 1) * static_cast<std::size_t>(world_size)) {
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

int run_rank(const ScaleOptions& options, const Environment& environment) {
  const double cpu_before = cpu_of(RUSAGE_SELF).all;
  const ResourceUsage usage = train(options, environment);
  const double cpu = cpu_of(RUSAGE_SELF).all - cpu_before;
  if (!options.results.empty()) {
    append_line(options.results, {usage.threads, usage.descriptors, usage.page_tables, cpu});
  }
  return 0;
}

/// Returns the environment of one of the `forks` ranks of this process's node.
Environment forked(Environment environment, int forks, int local_rank) {
  environment.world_size *= forks;
  environment.rank = environment.rank * forks + local_rank;
  environment.local_world_size = forks;
  environment.local_rank = local_rank;
  // The launcher's coordinator is for the launcher's ranks. Rank 0 runs one at MASTER_PORT, which is free for programs.
  environment.launcher_coordinator = false;
  environment.master_port = static_cast<std::uint16_t>(std::stoi(std::getenv("MASTER_PORT")));
  return environment;
}

}  // namespace

int run_scale_rank(const ScaleOptions& options, const Environment& environment) {
  if (options.forks == 0) return run_rank(options, environment);
  return run_forked(options.forks,
                    [&](int local_rank) { return run_rank(options, forked(environment, options.forks, local_rank)); });
}

CpuSeconds cpu_of_children() {
  return cpu_of(RUSAGE_CHILDREN);
}

ResourceUsage read_usage(const std::string& file, int ranks) {
  auto lines = read_lines(file);
  std::erase_if(lines, [](const Labels& line) { return line.is_string(); });  // of wait_until_all_are_here()
  if (lines.size() != static_cast<std::size_t>(ranks)) {
    throw std::runtime_error(std::to_string(lines.size()) + " of " + std::to_string(ranks) +
                             " ranks wrote their usage");
  }
  ResourceUsage all;
  for (const auto& line : lines) {
    all.threads = std::max<double>(all.threads, line.at(0));
    all.descriptors = std::max<double>(all.descriptors, line.at(1));
    all.page_tables = std::max<double>(all.page_tables, line.at(2));
    all.cpu += line.at(3).get<double>();
  }
  return all;
}

}  // namespace tutti::bench
