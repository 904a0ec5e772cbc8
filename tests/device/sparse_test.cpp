// Ranks: 2 as threads, each with a simulated device. Sparse gradients beside gradients on a device.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

#include "device/both.h"
#include "support/training.h"
#include "tutti/tutti.h"

namespace tutti::device_sparse_test {
namespace {

using test::run_simulated_ranks;

/// A sparse table, and a layer on another device perhaps.
struct NetImpl : torch::nn::Module {
  NetImpl()
      : table(register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true)))),
        layer(register_module("layer", torch::nn::Linear(4, 1))) {
    test::fill(*this, 4);
  }
  at::Tensor forward(const at::Tensor& rows) { return layer(table(rows).to(layer->weight.device())); }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear layer{nullptr};
};
TORCH_MODULE(Net);

TEST(DeviceSparse, GradientsOnADeviceAreRefusedByNameOnAllRanks) {
  run_simulated_ranks({}, [](const Communicator& communicator, at::Device device) {
    Accelerator accelerator({.communicator = communicator});
    Net net;
    net->to(device);
    try {
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
      ADD_FAILURE() << "no error";
    } catch (const UsageError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("parameter 'table.weight' is on " + device.str() + ", and its gradients are sparse"),
                std::string::npos)
          << text;
    }
  });
}

TEST(DeviceSparse, ATableOnTheCpuTrainsBesideLayersOnADevice) {
  const test::RankBody body = [](const Communicator& communicator, at::Device device) {
    Accelerator accelerator({.communicator = communicator});
    Net net;
    net->layer->to(device);
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    for (int step = 0; step < 3; ++step) {
      const auto scope = accelerator.accumulate(model);
      const at::Tensor rows = at::arange(4) + 2 * communicator.rank() + step;
      accelerator.backward(model->forward(rows).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    }
    return test::tensors_of(*net);
  };
  test::expect_equal(test::results_on_devices({}, body), test::results_on_cpu(2, body), 1e-6);
}

}  // namespace
}  // namespace tutti::device_sparse_test
