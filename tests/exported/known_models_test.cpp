// Models of torchvision and transformers, trained in C++ from their exported programs. All losses and outputs, and the
// parameters and buffers at the end, have the same bits as in eager PyTorch. One rank. `./dev peers` installs both
// packages.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "checkpoint/python.h"
#include "exported/python_models.h"
#include "support/temporary_folder.h"
#include "tutti/checkpoint/safetensors.h"
#include "tutti/exported/exported_module.h"

namespace tutti::test::known_models_test {
namespace {

constexpr const char* run_script = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')";
// Equal to the constants of export_known_models.py.
constexpr int steps = 5;
constexpr double learning_rate = 0.01;
constexpr double momentum = 0.9;

struct Results {
  at::Tensor loss;
  at::Tensor out;
};

/// Computes the loss outside the model.
Results of_images(ExportedModule& model, const std::map<std::string, at::Tensor>& inputs) {
  const at::Tensor out = model.forward(inputs.at("x"));
  return {.loss = at::cross_entropy_loss(out, inputs.at("labels")), .out = out};
}

Results of_text(ExportedModule& model, const std::map<std::string, at::Tensor>& inputs) {
  const auto outputs = model.forward({}, {inputs.begin(), inputs.end()}).toGenericDict();
  return {.loss = outputs.at("loss").toTensor(), .out = outputs.at("logits").toTensor()};
}

using Compute = Results (*)(ExportedModule&, const std::map<std::string, at::Tensor>&);

class KnownModels : public testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    const auto python = python_from("TUTTI_PEERS_PYTHON");
    if (!python) GTEST_SKIP() << "set TUTTI_PEERS_PYTHON=$(tools/peers.sh)";
    python_ = *python;
  }

  /// Exports and trains the model `name` in Python, trains the exported program, and compares the results.
  void expect_python(const std::string& name, Compute compute) {
    const auto done = run_python(python_, run_script, {KNOWN_MODELS_SCRIPT, folder_.path().string(), name});
    ASSERT_EQ(done.exit_code, 0) << done.output;
    const auto python = load_safetensors(folder_.path() / (name + ".safetensors")).tensors;
    ExportedModule model(folder_.path() / (name + ".pt2"));
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(learning_rate).momentum(momentum));

    torch::manual_seed(1);
    for (int step = 0; step < steps; ++step) {
      const auto [loss, out] = compute(model, inputs_of(python, step));
      const auto of_step = std::to_string(step) + ".";
      EXPECT_TRUE(same_bits(loss.detach(), python.at(of_step + "loss"))) << "step " << step;
      EXPECT_TRUE(same_bits(out.detach(), python.at(of_step + "out"))) << "step " << step;
      loss.backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    expect_state(model, python);
    model.eval();
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(same_bits(compute(model, inputs_of(python, 0)).out, python.at("eval"))) << "in evaluation";
  }

 private:
  using Tensors = std::map<std::string, at::Tensor>;

  static Tensors inputs_of(const Tensors& python, int step) {
    const std::string prefix = std::to_string(step) + ".in.";
    Tensors inputs;
    for (const auto& [name, tensor] : python) {
      if (name.starts_with(prefix)) inputs.emplace(name.substr(prefix.size()), tensor);
    }
    return inputs;
  }

  static void expect_state(const ExportedModule& model, const Tensors& python) {
    Tensors state;
    for (const auto& entry : model.named_parameters()) state.emplace("end." + entry.key(), entry.value().detach());
    for (const auto& entry : model.named_buffers()) state.emplace("end." + entry.key(), entry.value());
    for (const auto& [name, tensor] : python) {
      if (!name.starts_with("end.")) continue;
      ASSERT_TRUE(state.contains(name)) << name;
      EXPECT_TRUE(same_bits(state.at(name), tensor)) << name;
    }
  }

  std::string python_;
  TemporaryFolder folder_;
};

TEST_F(KnownModels, Resnet18OfTorchvision) {
  expect_python("resnet18", of_images);
}

TEST_F(KnownModels, BertOfTransformers) {
  expect_python("bert", of_text);
}

TEST_F(KnownModels, Gpt2OfTransformers) {
  expect_python("gpt2", of_text);
}

}  // namespace
}  // namespace tutti::test::known_models_test
