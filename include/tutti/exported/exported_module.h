#pragma once
// A program of Python's torch.export as a torch::nn::Module, so that it can be prepared, trained, checkpointed and
// resumed:
//
//   auto net = std::make_shared<tutti::ExportedModule>("model.pt2");   // torch.export.save(torch.export.export(...))
//   auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
//   auto loss = torch::nll_loss(model->forward(images), labels);
//
// Export the model in training mode (model.train(), torch.export.export), and not with run_decompositions().
// https://docs.pytorch.org/docs/stable/export.html
#include <ATen/core/TensorBody.h>
#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

#include <concepts>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tutti {

/// Runs the program's graph operator by operator, under autograd and autocast like any other module. It has the
/// parameters and buffers of the Python module under their names, in a tree of submodules; what is one tensor in Python
/// is one tensor here. train() and eval() act on dropout, batch normalization and recurrent layers as they do in
/// Python, also for one submodule; to() moves what the graph has written into it as well: the device and the floating
/// point dtype that the parameters were exported with become those of to(). A program has no way that is not in its
/// graph: what Python decided while it was exported stays decided. forward() may run on several threads while nothing
/// is changed.
class ExportedModule : public torch::nn::Module {
 public:
  /// Reads a .pt2 file to CPU memory, wherever the model was exported; `model` names one of several in a file. Not a
  /// collective. Nothing in the file runs code: what is pickled is refused. Throws CheckpointError naming the file for
  /// one that is missing, damaged or of a schema that is not understood, and UsageError that names all operators that
  /// this program does not have.
  explicit ExportedModule(const std::filesystem::path& path, const std::string& model = {});
  ~ExportedModule() override;

  /// What the Python module returns: tensors, numbers and None in tuples, lists and dicts. Inputs are the positional
  /// ones and those given by name, in the shapes that they had at the export (a list may stand for a tuple). Throws
  /// UsageError that names the input where its structure, its dimensions or a fixed value is another one, before
  /// anything runs. Errors of operators are LibTorch's (c10::Error), and name the node.
  c10::IValue forward(std::vector<c10::IValue> inputs, std::map<std::string, c10::IValue> named = {});
  /// forward() of tensors to a tensor. Throws UsageError where the program returns something else.
  template <std::same_as<at::Tensor>... Tensors>
  at::Tensor forward(const Tensors&... inputs) {
    return tensor_of(forward(std::vector<c10::IValue>{inputs...}));
  }

  /// Each parameter once, as in Python: an optimizer over the base's list, where tied ones stand under all their names,
  /// would step these twice.
  std::vector<at::Tensor> parameters(bool recurse = true) const;

  using torch::nn::Module::load;
  using torch::nn::Module::save;
  /// Writes parameters and persistent buffers as safetensors, each under all its names: what Python's
  /// model.load_state_dict(safetensors.torch.load_file(path)) takes. Throws CheckpointError where the disk fails.
  void save(const std::filesystem::path& path) const;
  /// Reads what save(), or Python's save_file(model.state_dict(), path), has written. Throws CheckpointError that lists
  /// what does not fit, before anything is changed.
  void load(const std::filesystem::path& path);

  /// As the base has them; what the graph has written into it goes along.
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  /// The dtype alone.
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  /// The device alone.
  void to(torch::Device device, bool non_blocking = false) override;

 private:
  struct Impl;
  static at::Tensor tensor_of(const c10::IValue& output);

  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
