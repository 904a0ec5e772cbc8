// An exported program computes the same bits in C++ as the eager module in Python: outputs, loss, all gradients and
// buffers, in training and evaluation, also for sizes that differ from those at export. One rank.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/utils.h>

#include <chrono>
#include <functional>
#include <iostream>

#include "checkpoint/python.h"
#include "exported/load_program.h"
#include "exported/python_models.h"
#include "support/temporary_folder.h"
#include "tutti/core/error.h"
#include "tutti/exported/exported_module.h"

// An operator that LibTorch does not have.
TORCH_LIBRARY(tutti_test, library) {
  library.def("twice(Tensor x) -> Tensor", [](const at::Tensor& x) { return at::mul(x, 2); });
}

namespace tutti::test::exported_models_test {
namespace {

/// Calls the model with Python's input tensors, in Python's order.
using Call = std::function<c10::IValue(ExportedModule& model, const std::vector<at::Tensor>& inputs)>;

c10::IValue plain(ExportedModule& model, const std::vector<at::Tensor>& inputs) {
  return model.forward(std::vector<c10::IValue>(inputs.begin(), inputs.end()));
}

c10::IValue encode(ExportedModule& model, const std::vector<at::Tensor>& inputs) {
  return model.forward({inputs[0], inputs[1]}, {{"padding", inputs[2]}});
}

c10::IValue mix(ExportedModule& model, const std::vector<at::Tensor>& in) {
  c10::Dict<std::string, at::Tensor> batch;
  batch.insert("m", in[1]);
  batch.insert("x", in[0]);
  const c10::IValue inner = c10::ivalue::Tuple::create({in[3], in[4]});
  return model.forward({batch, 2.0, c10::ivalue::Tuple::create({in[2], inner})}, {{"flag", in[5]}});
}

void expect_all(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& wanted, const char* what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same_bits(got[i], wanted[i])) << what << " " << i;
}

/// Compares a pass in training with the tensors that Python recorded under `prefix`.
void expect_pass(ExportedModule& model, const PythonModel& python, const Call& call, const std::string& prefix) {
  SCOPED_TRACE("prefix '" + prefix + "'");
  model.train();
  model.zero_grad();
  const auto inputs = python.list(prefix + "in.");
  torch::manual_seed(1);
  const c10::IValue outputs = call(model, inputs);
  expect_all(leaves_of(outputs), python.list(prefix + "out."), "output");
  const at::Tensor loss = loss_of(outputs);
  EXPECT_TRUE(same_bits(loss.detach(), python.at(prefix + "loss"))) << "loss";
  loss.backward();
  int gradients = 0;
  for (const auto& entry : model.named_parameters()) {
    const auto wanted = python.tensors.find(prefix + "grad." + entry.key());
    ASSERT_EQ(entry.value().grad().defined(), wanted != python.tensors.end()) << entry.key();
    if (wanted == python.tensors.end()) continue;
    EXPECT_TRUE(same_bits(entry.value().grad(), wanted->second)) << entry.key();
    ++gradients;
  }
  EXPECT_GT(gradients, 0);
  for (const auto& entry : model.named_buffers()) {
    EXPECT_TRUE(same_bits(entry.value(), python.at(prefix + "buffer." + entry.key()))) << entry.key();
  }
  expect_all(inputs, python.list(prefix + "after."), "input after the pass,");
}

void expect_state(const ExportedModule& model, const PythonModel& python) {
  const auto state = named_tensors_of(model);
  std::size_t names = 0;
  for (const auto& [name, tensor] : python.tensors) {
    if (!name.starts_with("state.")) continue;
    const auto found = state.find(name.substr(6));
    ASSERT_NE(found, state.end()) << name;
    EXPECT_TRUE(same_bits(found->second.detach(), tensor)) << name;
    ++names;
  }
  EXPECT_EQ(state.size(), names);
}

class Exported : public testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    if (!python_from("TUTTI_TORCH_PYTHON")) GTEST_SKIP() << "set TUTTI_TORCH_PYTHON=$(tools/torch_python.sh LIBTORCH)";
  }

  static void expect_python(const std::string& name, const Call& call = plain) {
    const PythonModel& python = *python_model(name);
    ExportedModule model(python.program);
    expect_state(model, python);
    expect_pass(model, python, call, "");
    if (python.tensors.contains("more.in.0")) expect_pass(model, python, call, "more.");
    if (!python.tensors.contains("eval.0")) return;
    model.eval();
    const at::NoGradGuard no_grad;
    expect_all(leaves_of(call(model, python.list("in."))), python.list("eval."), "output in evaluation");
  }
};

TEST_F(Exported, ConvolutionWithBatchNormAndDropout) {
  expect_python("net");
}

TEST_F(Exported, GptWithTiedWeights) {
  expect_python("gpt");
  const ExportedModule model(python_model("gpt")->program);
  const auto parameters = model.named_parameters();
  EXPECT_TRUE(parameters["head.weight"].is_same(parameters["tokens.weight"]));
  EXPECT_EQ(model.parameters().size(), parameters.size() - 1);
}

TEST_F(Exported, EncoderWithMasks) {
  expect_python("encoder", encode);
}

TEST_F(Exported, Lstm) {
  expect_python("lstm");
}

TEST_F(Exported, NestedInputsBranchesAutocastAndMutations) {
  expect_python("mixed", mix);
}

TEST_F(Exported, ProgramWithoutInPlaceOperators) {
  expect_python("functional");
}

TEST_F(Exported, SpectralNorm) {
  expect_python("spectral");
}

TEST_F(Exported, TheReportNamesBuffersThatTheGraphWritesOutsideBatchNorm) {
  const auto written = [](const std::string& name) {
    return exported::load_program(python_model(name)->program, {}).report.written_buffers;
  };
  EXPECT_EQ(written("net"), std::set<std::string>());
  EXPECT_EQ(written("functional"), std::set<std::string>());
  EXPECT_EQ(written("mixed"), (std::set<std::string>{"calls", "seen"}));
  EXPECT_EQ(written("spectral"),
            (std::set<std::string>{"parametrizations.weight.0._u", "parametrizations.weight.0._v"}));
}

TEST_F(Exported, OperatorOfALibrary) {
  expect_python("custom");
}

}  // namespace
}  // namespace tutti::test::exported_models_test
