#pragma once
// The component tutti::exported: a program of Python's torch.export as a torch::nn::Module. It can be prepared,
// trained, checkpointed and resumed:
//
//   auto net = std::make_shared<tutti::ExportedModule>("model.pt2");   // torch.export.save(torch.export.export(...))
//   auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
//   auto loss = torch::nll_loss(model->forward(images), labels);
//
// Export the model in training mode (model.train(), torch.export.export), without run_decompositions().
// https://docs.pytorch.org/docs/stable/export.html
#include <ATen/core/TensorBody.h>
#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

#include <concepts>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tutti/checkpoint/model_file.h"

namespace tutti {

/// Runs the program's graph operator by operator, under autograd and autocast, like any other module.
/// - Parameters and buffers have the names of the Python module, in a tree of submodules. Tied tensors stay tied.
/// - train() and eval() act on dropout, batch normalization and recurrent layers as in Python, also on one submodule.
///   The batch counter of a decomposed batch normalization follows the mode of the whole module, and operators in the
///   branches of cond that of the module that calls it.
/// - to() also moves the device and floating-point dtype constants in the graph, if they equal those of the parameters
///   at export.
/// - Control flow of Python that is not in the graph is fixed at export. So a buffer that Python writes under
///   `if self.training` is also written in evaluation, except those of batch normalization.
/// forward() may run on several threads while no thread modifies the module.
class ExportedModule : public torch::nn::Module, public NonPersistentBuffers {
 public:
  /// Reads a .pt2 file to CPU memory, also if the model was exported on another device. `model` selects one of several
  /// models in the file. Not a collective. Runs no code of the file: pickled data is rejected. Throws CheckpointError
  /// naming the file if it is missing, damaged or has an unsupported schema. Throws UsageError naming all operators
  /// that are not registered in this program.
  explicit ExportedModule(const std::filesystem::path& path, const std::string& model = {});
  ~ExportedModule() override;

  /// Returns the result of the Python module: tensors, numbers and None in tuples, lists and dicts. Takes positional
  /// inputs and inputs by name, with the structure and sizes of the export; a list may replace a tuple. Throws
  /// UsageError naming an input whose structure, sizes or fixed value differs, before any operator runs. Errors of
  /// operators are c10::Error and name the node.
  c10::IValue forward(std::vector<c10::IValue> inputs, std::map<std::string, c10::IValue> named = {});
  /// forward() from tensors to a tensor. Throws UsageError if the program does not return a tensor.
  template <std::same_as<at::Tensor>... Tensors>
  at::Tensor forward(const Tensors&... inputs) {
    return tensor_of(forward(std::vector<c10::IValue>{inputs...}));
  }

  /// Returns each parameter once, as in Python. The base class lists a tied parameter under each of its names, and an
  /// optimizer over that list would step it twice.
  std::vector<at::Tensor> parameters(bool recurse = true) const;

  /// Returns the names of the buffers that Python registered with persistent=False.
  std::set<std::string> non_persistent_buffers() const override;

  using torch::nn::Module::load;
  using torch::nn::Module::save;
  /// Writes parameters and persistent buffers as safetensors, each under all its names, as Python's
  /// model.load_state_dict(safetensors.torch.load_file(path)) expects. Throws CheckpointError if writing fails.
  void save(const std::filesystem::path& path) const;
  /// Reads a file of save(), or of Python's save_file(model.state_dict(), path). Throws CheckpointError, listing every
  /// tensor that does not fit, before it changes any.
  void load(const std::filesystem::path& path);

  /// As in the base class; also converts constants of the graph (see the class).
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  /// Changes the dtype only.
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  /// Changes the device only.
  void to(torch::Device device, bool non_blocking = false) override;

 private:
  struct Impl;
  static at::Tensor tensor_of(const c10::IValue& output);

  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
