// A C++ rank of a job whose rank 0 is a Python program (mixed.py): the same model over the same store.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tutti/comm/communicator.h"
#include "tutti/sync/distributed_data_parallel.h"

int main() {
  const auto number = [](const char* name) { return std::atoi(std::getenv(name)); };
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(number("MASTER_PORT"));
  c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::TCPStore>(std::getenv("MASTER_ADDR"), options);
  // Where PyTorch's default group keeps its backend for the CPU.
  for (const char* prefix : {"default_pg", "0/", "cpu/"}) store = c10::make_intrusive<c10d::PrefixStore>(prefix, store);
  const auto communicator = tutti::Communicator::connect(store, number("RANK"), number("WORLD_SIZE"));

  torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::Tanh(), torch::nn::Linear(4, 1));
  tutti::DistributedDataParallel model(net, communicator, {.policy = tutti::SyncPolicy::automatic});
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int step = 0; step < 6; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      const auto data = torch::full({2, 3}, 0.1 * (step + micro + communicator.rank()));
      net->forward(data).pow(2).mean().backward();
    }
    model.reducer().prepare_step();
    optimizer.step();
    model.reducer().stepped();
    optimizer.zero_grad();
  }
  double total = 0;
  for (const auto& tensor : net->parameters()) total += tensor.detach().to(torch::kDouble).abs().sum().item<double>();
  std::printf("ended with %.9f after %d rounds\n", total, static_cast<int>(model.stats().rounds));
  communicator.barrier().wait();
}
