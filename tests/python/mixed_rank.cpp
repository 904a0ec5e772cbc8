// A C++ rank of a job whose other ranks are Python programs (mixed.py). It trains the same model over the same store,
// which is in the file that the argument names.
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "tutti/comm/communicator.h"
#include "tutti/sync/distributed_data_parallel.h"

namespace {

constexpr std::chrono::seconds deadline(60);

int number(const char* name) {
  return std::atoi(std::getenv(name));  // NOLINT(concurrency-mt-unsafe)
}

/// The store under the prefix that PyTorch's default group uses for its CPU backend.
c10::intrusive_ptr<c10d::Store> store_of_the_default_group(const std::string& file) {
  c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::FileStore>(file, number("WORLD_SIZE"));
  for (const char* prefix : {"default_pg", "0/", "cpu/"}) store = c10::make_intrusive<c10d::PrefixStore>(prefix, store);
  return store;
}

void print_bits(const std::string& name, const std::vector<at::Tensor>& tensors) {
  std::string line = name;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor flat = tensor.detach().contiguous();
    const auto* words = static_cast<const std::int32_t*>(flat.const_data_ptr());
    for (std::int64_t i = 0; i < flat.numel(); ++i) {
      line += ' ';
      line += std::to_string(words[i]);
    }
  }
  std::puts(line.c_str());
}

}  // namespace

int main(int, char** argv) {
  const auto communicator =
      tutti::Communicator::connect(store_of_the_default_group(argv[1]), number("RANK"), number("WORLD_SIZE"),
                                   {.timeout = deadline, .connect_timeout = deadline});
  // This rank's initial values are replaced by those of rank 0.
  torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::Tanh(), torch::nn::Linear(4, 1));
  tutti::DistributedDataParallel model(*net, communicator, {.policy = tutti::SyncPolicy::automatic});
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int step = 0; step < 6; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      net->forward(at::full({2, 3}, 0.1 * (step + micro + communicator.rank()))).pow(2).mean().backward();
    }
    model.reducer().prepare_step();
    optimizer.step();
    model.reducer().on_optimizer_step();
    std::vector<at::Tensor> gradients;
    for (const auto& tensor : net->parameters()) gradients.push_back(tensor.grad());
    print_bits("gradients " + std::to_string(step), gradients);
    optimizer.zero_grad();
  }
  print_bits("parameters", net->parameters());
  std::printf("syncs %d\n", static_cast<int>(model.stats().syncs));
  std::fflush(stdout);
  communicator.barrier().wait();
}
