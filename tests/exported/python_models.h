#pragma once
// Models that Python has exported, with what eager PyTorch computes with them. One rank.
#include <ATen/core/TensorBody.h>
#include <ATen/core/ivalue.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace tutti::test {

/// What Python has written for one model: see export_models.py for the names.
struct PythonModel {
  std::filesystem::path program{};
  std::map<std::string, at::Tensor> tensors{};

  at::Tensor at(const std::string& name) const { return tensors.at(name); }
  /// "in.0", "in.1", ... behind `prefix`, as copies.
  std::vector<at::Tensor> list(const std::string& prefix) const;
};

/// Exports all models once a process. nullptr where TUTTI_TORCH_PYTHON names no Python.
const PythonModel* python_model(const std::string& name);

/// The tensors of nested tuples, lists and dicts, in their order.
std::vector<at::Tensor> leaves_of(const c10::IValue& value);

/// The loss of export_models.py.
at::Tensor loss_of(const c10::IValue& outputs);

/// Whether both have the same dtype, sizes and bits.
testing::AssertionResult same_bits(const at::Tensor& a, const at::Tensor& b);

}  // namespace tutti::test
