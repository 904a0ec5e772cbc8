#pragma once
// Creates the submodules of a module from the dotted names of its tensors.
#include <torch/nn/module.h>

#include <string>

namespace tutti::exported {

class ModuleTree {
 public:
  explicit ModuleTree(torch::nn::Module& root) : root_(root) {}

  /// Registers a tensor under its Python name, "layers.0.weight". Throws CheckpointError if the name is invalid or
  /// already in use.
  void add(const std::string& name, at::Tensor tensor, bool requires_grad, bool is_parameter);
  /// Returns the submodule at `path`. Creates it if it does not exist. Returns the root if `path` is invalid.
  torch::nn::Module& module(const std::string& path);

 private:
  torch::nn::Module& owner_of(const std::string& path);

  torch::nn::Module& root_;
};

}  // namespace tutti::exported
