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
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace torch::jit {
struct Module;
}

namespace tutti {

struct AssignedBuffer;

/// Shares parameters and buffers with the script: training, to(dtype), train(), eval() and load_state() change the
/// script itself. The module has the script's tree of submodules and its names. Parameters added to the script later
/// (register_parameter, setattr) are not seen. What forward() assigns to a buffer (`self.mean = ...`) is copied into
/// the buffer. A frozen script has no parameters to train. A traced module (torch.jit.trace) keeps the mode in which it
/// was traced: train() and eval() do not change what it computes. After its first passes LibTorch runs optimized code
/// for a script, which may round differently. A resumed run has the same bits only with
/// torch::jit::setGraphExecutorOptimize(false). Several threads may call forward() at once if no thread changes the
/// script otherwise. Calls of a script that assigns buffers run one after the other.
class JitModule : public torch::nn::Module {
 public:
  /// `script` is a handle: the caller's handle refers to the same module. Not a collective.
  explicit JitModule(const torch::jit::Module& script);
  ~JitModule() override;

  /// Runs the script's forward method with positional inputs and inputs by name. Throws LibTorch's errors (c10::Error,
  /// or the script's own exception), and UsageError if the script assigns another shape to a buffer.
  c10::IValue forward(std::vector<c10::IValue> inputs, const std::map<std::string, c10::IValue>& named = {});
  /// forward() with tensors as inputs and output. Throws UsageError if the script returns another type.
  template <std::same_as<at::Tensor>... Tensors>
  at::Tensor forward(const Tensors&... inputs) {
    return tensor_of(forward(std::vector<c10::IValue>{inputs...}));
  }

  /// Returns each parameter once, as in Python. The base class lists a tied parameter under each of its names, and an
  /// optimizer over that list would step it twice.
  std::vector<at::Tensor> parameters(bool recurse = true) const;

  /// Sets the mode of the script and all its submodules.
  void train(bool on = true) override;
  /// The script's mode.
  bool is_training() const noexcept override;

  /// The script, for example to save() it.
  const torch::jit::Module& script() const { return *script_; }

 private:
  static at::Tensor tensor_of(const c10::IValue& output);

  std::unique_ptr<torch::jit::Module> script_;
  std::vector<AssignedBuffer> assigned_buffers_;
  std::mutex mutex_;  // of calls that assign them
};

}  // namespace tutti
