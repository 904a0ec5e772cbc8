#pragma once
// Models that Python exports, with the results of eager PyTorch.
#include <ATen/core/TensorBody.h>
#include <ATen/core/ivalue.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace tutti::test {

/// The files of one model. export_models.py lists the names of the tensors.
struct PythonModel {
  std::filesystem::path program{};
  std::map<std::string, at::Tensor> tensors{};

  at::Tensor at(const std::string& name) const { return tensors.at(name); }
  /// Returns copies of the tensors `prefix` + "0", `prefix` + "1", ...
  std::vector<at::Tensor> list(const std::string& prefix) const;
};

/// Exports all models at the first call in a process. Returns nullptr if TUTTI_TORCH_PYTHON is not set.
const PythonModel* python_model(const std::string& name);

/// Returns the tensors of nested tuples, lists and dicts, in their order.
std::vector<at::Tensor> leaves_of(const c10::IValue& value);

/// Computes the loss of export_models.py.
at::Tensor loss_of(const c10::IValue& outputs);

/// Succeeds if both have the same dtype, sizes and bits.
testing::AssertionResult same_bits(const at::Tensor& a, const at::Tensor& b);

}  // namespace tutti::test
