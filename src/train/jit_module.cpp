#include "tutti/train/jit_module.h"

#include <torch/csrc/jit/api/module.h>

#include <utility>

#include "checkpoint/tied_tensors.h"
#include "train/jit_buffers.h"
#include "tutti/core/error.h"

namespace tutti {

JitModule::JitModule(const torch::jit::Module& script)
    : torch::nn::Module("JitModule"),
      script_(std::make_unique<torch::jit::Module>(script)),
      assigned_buffers_(AssignedBuffer::of(script)) {
  for (const auto& parameter : script.named_parameters(/*recurse=*/false)) {
    register_parameter(parameter.name, parameter.value, parameter.value.requires_grad());
  }
  for (const auto& buffer : script.named_buffers(/*recurse=*/false)) register_buffer(buffer.name, buffer.value);
  for (const auto& child : script.named_children()) {
    register_module(child.name, std::make_shared<JitModule>(child.value));
  }
}

JitModule::~JitModule() = default;

c10::IValue JitModule::forward(std::vector<c10::IValue> inputs, const std::map<std::string, c10::IValue>& named) {
  AssigningCall call(assigned_buffers_, mutex_);
  c10::IValue output = script_->forward(std::move(inputs), {named.begin(), named.end()});
  call.finish();
  return output;
}

std::vector<at::Tensor> JitModule::parameters(bool recurse) const {
  return checkpoint::without_repeats(torch::nn::Module::parameters(recurse));
}

void JitModule::train(bool on) {
  script_->train(on);
}

bool JitModule::is_training() const noexcept {
  return script_->is_training();
}

at::Tensor JitModule::tensor_of(const c10::IValue& output) {
  if (output.isTensor()) return output.toTensor();
  throw UsageError("JitModule: the script's forward returns " + output.tagKind() +
                   ", not a tensor: call forward(std::vector<c10::IValue>{...})");
}

}  // namespace tutti
