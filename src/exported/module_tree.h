#pragma once
// The submodules that a module's dotted names stand for.
#include <torch/nn/module.h>

#include <string>

namespace tutti::exported {

class ModuleTree {
 public:
  explicit ModuleTree(torch::nn::Module& root) : root_(root) {}

  /// Registers a tensor under its Python name, "layers.0.weight". Throws CheckpointError for a name that cannot be one,
  /// or stands for something else already.
  void add(const std::string& name, at::Tensor tensor, bool requires_grad, bool is_parameter);
  /// The submodule at `path`, made where it is not there; the root for a path that cannot be one.
  torch::nn::Module& module(const std::string& path);

 private:
  torch::nn::Module& owner_of(const std::string& path);

  torch::nn::Module& root_;
};

}  // namespace tutti::exported
