#include "exported/python_models.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/pow.h>

#include "checkpoint/python.h"
#include "support/temporary_folder.h"
#include "tutti/checkpoint/safetensors.h"

namespace tutti::test {
namespace {

constexpr const char* run_script = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')";
const std::vector<std::string> models = {"net", "gpt", "encoder", "lstm", "mixed", "functional", "custom", "spectral"};

const TemporaryFolder& exported_models(const std::string& python) {
  static const TemporaryFolder folder;
  static const ScriptResult result = [&] {
    std::vector<std::string> arguments = {EXPORT_SCRIPT, folder.path().string()};
    arguments.insert(arguments.end(), models.begin(), models.end());
    return run_python(python, run_script, arguments);
  }();
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return folder;
}

}  // namespace

std::vector<at::Tensor> PythonModel::list(const std::string& prefix) const {
  std::vector<at::Tensor> found;
  for (int i = 0; tensors.contains(prefix + std::to_string(i)); ++i) {
    found.push_back(tensors.at(prefix + std::to_string(i)).clone());
  }
  return found;
}

const PythonModel* python_model(const std::string& name) {
  static std::map<std::string, PythonModel> known;
  const auto python = python_from("TUTTI_TORCH_PYTHON");
  if (!python) return nullptr;
  const auto& folder = exported_models(*python).path();
  auto [model, is_new] = known.try_emplace(name);
  if (is_new) {
    model->second = {.program = folder / (name + ".pt2"),
                     .tensors = load_safetensors(folder / (name + ".safetensors")).tensors};
  }
  return &model->second;
}

std::vector<at::Tensor> leaves_of(const c10::IValue& value) {
  std::vector<c10::IValue> children;
  if (value.isTensor()) return {value.toTensor()};
  if (value.isTuple()) children.assign(value.toTupleRef().elements().begin(), value.toTupleRef().elements().end());
  if (value.isList()) children = value.toListRef().vec();
  if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) children.push_back(entry.value());
  }
  std::vector<at::Tensor> leaves;
  for (const c10::IValue& child : children) {
    for (const at::Tensor& leaf : leaves_of(child)) leaves.push_back(leaf);
  }
  return leaves;
}

at::Tensor loss_of(const c10::IValue& outputs) {
  at::Tensor loss;
  for (const at::Tensor& leaf : leaves_of(outputs)) {
    if (!leaf.requires_grad()) continue;
    const at::Tensor term = at::pow(leaf.to(at::kFloat), 2).mean();
    loss = loss.defined() ? loss + term : term;
  }
  return loss;
}

testing::AssertionResult same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) {
    return testing::AssertionFailure() << a.toString() << " " << a.sizes() << " and " << b.toString() << " "
                                       << b.sizes();
  }
  if (at::equal(a, b)) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "they differ by up to "
                                     << (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

}  // namespace tutti::test
