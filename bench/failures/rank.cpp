#include "failures/rank.h"

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <fcntl.h>
#include <signal.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <tutti/comm/communicator.h>
#include <tutti/core/error.h>
#include <tutti/sync/distributed_data_parallel.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>

namespace tutti::bench {
namespace {

constexpr int rounds_before = 20;
constexpr int knew_of_it = 3;
constexpr const char* astray = "astray";

std::int64_t now() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// In one write, so that the lines of several ranks do not mix.
void leave(const std::string& file, const Moment& moment) {
  std::string line = std::to_string(moment.rank) + " " + std::to_string(moment.nanoseconds);
  for (const int rank : moment.named) line += " " + std::to_string(rank);
  line += "\n";
  const int descriptor = ::open(file.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  const bool written = ::write(descriptor, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  ::close(descriptor);
  if (!written) throw std::runtime_error("cannot write to " + file);
}

void fail(const FailuresOptions& options, const Communicator& elsewhere) {
  leave(options.results, {.rank = elsewhere.rank(), .nanoseconds = now()});
  if (options.failure == "astray") elsewhere.barrier({.name = astray}).wait();
  if (options.failure == "killed") ::raise(SIGKILL);
  if (options.failure == "stopped") ::raise(SIGSTOP);
  if (std::system("ip link set \"$GLOO_SOCKET_IFNAME\" down") != 0) throw std::runtime_error("cannot cut the link");
}

std::function<void()> work(const FailuresOptions& options, const Communicator& communicator) {
  if (options.during.front() == "collectives") return [communicator] { communicator.all_reduce(at::ones({4})).wait(); };
  constexpr int width = 32;
  const auto model = std::make_shared<torch::nn::LinearImpl>(width, 1);
  const auto synchronized = std::make_shared<DistributedDataParallel>(*model, communicator);
  const auto optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), 0.1);
  return [model, synchronized, optimizer] {
    at::mse_loss(model->forward(at::randn({4, width})), at::randn({4, 1})).backward();
    optimizer->step();
    optimizer->zero_grad();
  };
}

}  // namespace

int run_failures_rank(const FailuresOptions& options, const Environment& environment) {
  const auto communicator = Communicator::connect(environment);
  const auto elsewhere = communicator.duplicate("elsewhere");
  const auto round = work(options, communicator);
  const int rank = communicator.rank();
  try {
    for (int count = 0;; ++count) {
      round();
      if (count == rounds_before && rank == communicator.size() - 1) fail(options, elsewhere);
    }
  } catch (const PeerFailure& failure) {
    leave(options.results, {.rank = rank, .nanoseconds = now(), .named = failure.ranks()});
  } catch (const Divergence& told) {
    const int last = communicator.size() - 1;
    const auto waits = "rank " + std::to_string(last) + " waits in barrier '" + astray + "'";
    const bool named = std::string(told.what()).find(waits) != std::string::npos;
    leave(options.results, {.rank = rank, .nanoseconds = now(), .named = {named ? last : 0}});
  }
  return knew_of_it;
}

std::vector<Moment> read_moments(const std::string& file) {
  std::vector<Moment> moments;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    Moment& moment = moments.emplace_back();
    words >> moment.rank >> moment.nanoseconds;
    for (int rank = 0; words >> rank;) moment.named.push_back(rank);
  }
  return moments;
}

}  // namespace tutti::bench
