// Ranks: none. Models train on the simulated accelerator as on the CPU.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "support/simulated_device/simulated_device.h"

namespace tutti::simulated_models_test {
namespace {

namespace simulated = test::simulated;

struct Model : torch::nn::Module {
  virtual at::Tensor forward(const at::Tensor& x) = 0;
};

struct Layers : Model {
  explicit Layers(torch::nn::Sequential layers) : net(register_module("net", std::move(layers))) {}
  at::Tensor forward(const at::Tensor& x) override { return net->forward(x); }
  torch::nn::Sequential net;
};

struct Convolutions : Layers {
  Convolutions()
      : Layers(torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3).padding(1)),
                                     torch::nn::BatchNorm2d(8), torch::nn::ReLU(), torch::nn::MaxPool2d(2),
                                     torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 4, 3).stride(2)),
                                     torch::nn::Flatten(), torch::nn::Linear(4, 1))) {}
  at::Tensor forward(const at::Tensor& x) override { return Layers::forward(x.view({-1, 1, 6, 6})); }
};

struct Perceptron : Layers {
  Perceptron()
      : Layers(torch::nn::Sequential(torch::nn::Linear(36, 64), torch::nn::GELU(),
                                     torch::nn::LayerNorm(torch::nn::LayerNormOptions({64})),
                                     torch::nn::Linear(64, 1))) {}
};

struct Transformer : Model {
  Transformer()
      : words(register_module("words", torch::nn::Embedding(32, 16))),
        layer(register_module("layer",
                              torch::nn::TransformerEncoderLayer(
                                  torch::nn::TransformerEncoderLayerOptions(16, 2).dim_feedforward(32).dropout(0)))),
        out(register_module("out", torch::nn::Linear(16, 1))) {}
  at::Tensor forward(const at::Tensor& x) override {
    const at::Tensor tokens = (x.abs() * 10).to(at::kLong).clamp(0, 31).t();
    return out->forward(layer->forward(words->forward(tokens)).mean(0));
  }
  torch::nn::Embedding words;
  torch::nn::TransformerEncoderLayer layer;
  torch::nn::Linear out;
};

/// The parameters and buffers after 10 steps on `device`.
template <typename Net, typename Optimizer, typename Options>
std::vector<at::Tensor> train(at::Device device, Options options) {
  torch::manual_seed(1);
  Net model;
  model.to(device);
  Optimizer optimizer(model.parameters(), options);
  for (int step = 0; step < 10; ++step) {
    const at::Tensor x = at::randn({8, 36}, at::detail::createCPUGenerator(static_cast<std::uint64_t>(step)));
    const at::Tensor target = x.pow(2).sum(1, true).sqrt();
    optimizer.zero_grad();
    torch::mse_loss(model.forward(x.to(device)), target.to(device)).backward();
    optimizer.step();
  }
  std::vector<at::Tensor> end;
  for (const at::Tensor& parameter : model.parameters()) end.push_back(parameter.detach().cpu());
  for (const at::Tensor& buffer : model.buffers()) end.push_back(buffer.cpu());
  return end;
}

template <typename Net, typename Optimizer, typename Options>
void expect_as_on_the_cpu(Options options) {
  const auto expected = train<Net, Optimizer>(at::kCPU, options);
  const auto actual = train<Net, Optimizer>(at::Device(simulated::type, 0), options);
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::allclose(actual[i], expected[i], 1e-5, 1e-5)) << "tensor " << i;
  }
}

TEST(SimulatedModels, PerceptronWithAdamW) {
  expect_as_on_the_cpu<Perceptron, torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2));
}

TEST(SimulatedModels, ConvolutionsWithSgd) {
  expect_as_on_the_cpu<Convolutions, torch::optim::SGD>(torch::optim::SGDOptions(1e-2).momentum(0.9));
}

TEST(SimulatedModels, TransformerWithSgd) {
  expect_as_on_the_cpu<Transformer, torch::optim::SGD>(torch::optim::SGDOptions(1e-2));
}

// The gradient of the keys' bias is rounding alone. A large eps keeps AdamW from scaling it to the size of a step.
TEST(SimulatedModels, TransformerWithAdamW) {
  expect_as_on_the_cpu<Transformer, torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2).eps(1e-4));
}

}  // namespace
}  // namespace tutti::simulated_models_test
