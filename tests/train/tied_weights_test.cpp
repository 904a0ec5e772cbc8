// Models that register a tensor under two names, and models with complex parameters: the average, the norms and the
// optimizer take each tensor once. One rank unless a test says otherwise.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/models.h"
#include "train/trainer_run.h"
#include "tutti/sync/distributed_data_parallel.h"
#include "tutti/train/callbacks/ema.h"

namespace tutti::test::tied_weights_test {
namespace {

/// Each tensor of the model once.
std::vector<at::Tensor> tensors_of(const torch::nn::Module& model) {
  std::vector<at::Tensor> tensors;
  for (const NamedParameter& parameter : named_parameters_of(model)) tensors.push_back(parameter.tensor);
  return tensors;
}

double norm_of(const std::vector<at::Tensor>& tensors) {
  double squares = 0;
  for (const at::Tensor& tensor : tensors)
    squares += tensor.detach().abs().to(at::kDouble).square().sum().item<double>();
  return std::sqrt(squares);
}

at::Tensor loss_of_tied(const Tied& net) {
  const at::Tensor words = at::arange(5);
  return torch::cross_entropy_loss(
      at::linear(at::embedding(net->embedding->weight, words), net->head->weight, net->head->bias), words);
}

struct ComplexImpl : torch::nn::Module {
  at::Tensor weight = register_parameter("weight", at::randn({4}, at::kComplexDouble));
};
TORCH_MODULE(Complex);

at::Tensor loss_of_complex(const Complex& net) {
  return (net->weight - 1).abs().square().sum();
}

/// What a model had at each step of a run.
struct Watch final : Callback {
  std::function<std::vector<at::Tensor>()> tensors;
  std::vector<double> gradient_norms;
  std::vector<std::vector<at::Tensor>> parameters;  ///< after each step
  std::vector<StepMetrics> metrics;                 ///< at each log, first that of the last step
  void on_optimizer_step_start(TrainerContext&) override {
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& tensor : tensors()) gradients.push_back(tensor.grad());
    gradient_norms.push_back(norm_of(gradients));
  }
  void on_optimizer_step_end(TrainerContext&) override {
    parameters.emplace_back();
    for (const at::Tensor& tensor : tensors()) parameters.back().push_back(tensor.detach().clone());
  }
  void on_log_start(TrainerContext& trainer, Scalars&) override { metrics.push_back(trainer.metrics()); }
};

/// Three steps of SGD. Evaluates and logs after the last.
template <typename Net>
std::shared_ptr<Watch> fit(Net& net, const std::function<at::Tensor(const Net&)>& loss, const std::shared_ptr<Ema>& ema,
                           const std::function<void()>& evaluate) {
  const auto watch = std::make_shared<Watch>();
  watch->tensors = [&net] { return tensors_of(*net); };
  Accelerator accelerator({.communicator = Communicator()});
  auto loader = accelerator.data_loader(Samples{6}, {.batch_size = 2});
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(tensors_of(*net), 0.1));
  Trainer trainer(accelerator, model, optimizer, std::nullopt, loader,
                  {.loss = [&loss](Net& trained, Batch&) { return loss(trained); }},
                  quiet({.max_steps = 3, .log_every = 3, .evaluate_every = 3}));
  trainer.set_evaluation([&] {
    evaluate();
    return Scalars{{"loss", 1.0}};
  });
  trainer.add_callback(watch);
  trainer.add_callback(ema);
  trainer.fit();
  return watch;
}

/// The average of the first tensor, which was `start` before the first step.
at::Tensor average_of(at::Tensor start, const Watch& watch) {
  for (const auto& step : watch.parameters) start = 0.8 * start + 0.2 * step.front();
  return start;
}

void expect_norms(const Watch& watch) {
  ASSERT_FALSE(watch.metrics.empty());
  const StepMetrics& metrics = watch.metrics.front();
  EXPECT_NEAR(metrics.grad_norm_pre_clip / watch.gradient_norms.back(), 1, 1e-6);
  EXPECT_NEAR(metrics.weight_norm.value_or(-1) / norm_of(watch.parameters.back()), 1, 1e-6);
}

TEST(TiedWeights, TheAverageAndTheNormsCountATensorOnce) {
  Tied net;
  fill(*net, 1);
  const at::Tensor start = net->embedding->weight.detach().clone();
  const auto ema = std::make_shared<Ema>(EmaOptions{.decay = 0.8, .warmup = false});
  at::Tensor evaluated;
  const auto watch = fit<Tied>(net, loss_of_tied, ema, [&] { evaluated = net->embedding->weight.detach().clone(); });
  ASSERT_EQ(watch->parameters.size(), 3U);
  const at::Tensor expected = average_of(start, *watch);
  EXPECT_FALSE(at::equal(expected, watch->parameters.back().front()));
  EXPECT_TRUE(at::allclose(evaluated, expected, 1e-6, 1e-7));
  EXPECT_TRUE(at::allclose(ema->average().at("embedding.weight"), expected, 1e-6, 1e-7));
  EXPECT_TRUE(at::equal(net->embedding->weight, watch->parameters.back().front())) << "evaluation changed the model";
  EXPECT_EQ(ema->average().size(), 2U);  // embedding.weight, head.bias
  expect_norms(*watch);
}

TEST(TiedWeights, ComplexParametersAreAveragedAndMeasured) {
  Complex net;
  const at::Tensor start = net->weight.detach().clone();
  const auto ema = std::make_shared<Ema>(EmaOptions{.decay = 0.8, .warmup = false});
  at::Tensor evaluated;
  const auto watch = fit<Complex>(net, loss_of_complex, ema, [&] { evaluated = net->weight.detach().clone(); });
  ASSERT_EQ(watch->parameters.size(), 3U);
  const at::Tensor expected = average_of(start, *watch);
  EXPECT_FALSE(at::allclose(expected, watch->parameters.back().front()));
  EXPECT_TRUE(at::allclose(evaluated, expected));
  EXPECT_TRUE(at::allclose(ema->average().at("weight"), expected));
  EXPECT_TRUE(at::equal(net->weight, watch->parameters.back().front()));
  expect_norms(*watch);
}

/// What prepare() writes to standard error.
std::string said_by_prepare(const std::function<void(Accelerator&)>& prepare) {
  Accelerator accelerator({.communicator = Communicator()});
  testing::internal::CaptureStderr();
  prepare(accelerator);
  return testing::internal::GetCapturedStderr();
}

TEST(TiedWeights, AnOptimizerThatListsATensorTwiceIsWarnedOf) {
  const std::string twice = said_by_prepare([](Accelerator& accelerator) {
    Tied net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    accelerator.prepare(model, optimizer);  // no second warning
  });
  EXPECT_NE(twice.find("warning: prepare(): the optimizer lists the parameter 'embedding.weight' twice"),
            std::string::npos)
      << twice;
  EXPECT_NE(twice.find("named_parameters_of(*model)"), std::string::npos) << twice;
  EXPECT_EQ(twice.find("warning"), twice.rfind("warning")) << twice;
  const std::string once = said_by_prepare([](Accelerator& accelerator) {
    Tied net;
    accelerator.prepare(net, torch::optim::SGD(tensors_of(*net), 0.1));
  });
  EXPECT_EQ(once, "");
}

}  // namespace
}  // namespace tutti::test::tied_weights_test
