#pragma once
// A TorchScript module as a torch::nn::Module, so that it can be prepared, trained, checkpointed and resumed:
//
//   auto script = std::make_shared<tutti::JitModule>(torch::jit::load("model.pt"));
//   auto [model, optimizer] = accelerator.prepare(script, torch::optim::SGD(script->parameters(), 0.1));
//
// https://docs.pytorch.org/docs/stable/jit.html
#include <ATen/core/TensorBody.h>
#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

#include <concepts>
#include <memory>
#include <vector>

namespace torch::jit {
struct Module;
}

namespace tutti {

/// Shares parameters and buffers with the script: training changes the script itself, and so do to(dtype), train(),
/// eval() and load_state(). It has the script's tree of submodules, so names are those of the script. Parameters that
/// the script gets later (register_parameter, setattr) are not seen. A frozen script has no parameters to train.
/// LibTorch runs a script by other code after its first passes, which may round otherwise: a resumed run is the same to
/// the bit only with torch::jit::setGraphExecutorOptimize(false).
/// As thread safe as the script: forward by several threads only while nothing is changed.
class JitModule : public torch::nn::Module {
 public:
  /// `script` is a handle: the caller's stays the same module. Not a collective.
  explicit JitModule(const torch::jit::Module& script);
  ~JitModule() override;

  /// The script's forward method. Errors are LibTorch's (c10::Error, or what the script raises).
  c10::IValue forward(std::vector<c10::IValue> inputs);
  /// forward() of tensors to a tensor. Throws UsageError where the script returns something else.
  template <std::same_as<at::Tensor>... Tensors>
  at::Tensor forward(const Tensors&... inputs) {
    return tensor_of(forward(std::vector<c10::IValue>{inputs...}));
  }

  // The script's own mode, with all its submodules.
  /// The script's own mode, with all its submodules.
  void train(bool on = true) override;
  /// The script's own mode.
  bool is_training() const noexcept override;

  /// The script itself, for example to save() it.
  const torch::jit::Module& script() const { return *script_; }

 private:
  static at::Tensor tensor_of(const c10::IValue& output);

  std::unique_ptr<torch::jit::Module> script_;
};

}  // namespace tutti
