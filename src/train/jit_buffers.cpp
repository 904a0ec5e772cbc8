#include "train/jit_buffers.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

#include <set>
#include <utility>

#include "tutti/core/error.h"

namespace tutti {
namespace {

/// Attributes by class and name.
using Attributes = std::set<std::pair<const c10::Type*, std::string>>;

void add_assigned(const torch::jit::Block& block, Attributes& assigned) {
  for (const torch::jit::Node* node : block.nodes()) {
    if (node->kind() == torch::jit::prim::SetAttr)
      assigned.emplace(node->input(0)->type().get(), node->s(torch::jit::attr::name));
    for (const torch::jit::Block* inner : node->blocks()) add_assigned(*inner, assigned);
  }
}

}  // namespace

std::vector<AssignedBuffer> AssignedBuffer::of(const torch::jit::Module& script) {
  Attributes assigned;
  for (const torch::jit::Module& module : script.modules()) {
    for (torch::jit::Function* method : module.type()->methods()) {
      if (const auto* function = torch::jit::tryToGraphFunction(*method))
        add_assigned(*function->graph()->block(), assigned);
    }
  }
  std::vector<AssignedBuffer> buffers;
  std::set<std::pair<const c10::ivalue::Object*, std::size_t>> seen;
  for (const auto& [module_name, module] : script.named_modules()) {
    for (const auto& [name, tensor] : module.named_buffers(/*recurse=*/false)) {
      const auto slot = module.type()->getAttributeSlot(name);
      if (!assigned.contains({module.type().get(), name}) || !seen.emplace(module._ivalue().get(), slot).second)
        continue;
      buffers.push_back({.name = module_name.empty() ? name : module_name + "." + name,
                         .object = module._ivalue(),
                         .slot = slot,
                         .registered = tensor});
    }
  }
  return buffers;
}

AssigningCall::AssigningCall(const std::vector<AssignedBuffer>& buffers, std::mutex& mutex)
    : lock_(mutex, std::defer_lock), buffers_(buffers) {
  if (!buffers_.empty()) lock_.lock();
  for (const auto& buffer : buffers_) buffer.object->setSlot(buffer.slot, buffer.registered.detach().clone());
}

AssigningCall::~AssigningCall() {
  for (const auto& buffer : buffers_) buffer.object->setSlot(buffer.slot, buffer.registered);
}

void AssigningCall::finish() {
  for (const auto& [name, object, slot, registered] : buffers_) {
    const c10::IValue& value = object->getSlot(slot);
    const auto is_like = [&registered = registered](const at::Tensor& tensor) {
      return tensor.defined() && tensor.sizes() == registered.sizes() &&
             at::canCast(tensor.scalar_type(), registered.scalar_type());
    };
    if (value.isTensor() && is_like(value.toTensor())) continue;
    throw UsageError("JitModule: the script assigned to its buffer '" + name +
                     "' a value of another type or shape: assign tensors of " +
                     c10::toString(registered.scalar_type()) + " and shape " + c10::str(registered.sizes()));
  }
  const at::NoGradGuard no_grad;
  for (const auto& buffer : buffers_) buffer.registered.copy_(buffer.object->getSlot(buffer.slot).toTensor());
}

}  // namespace tutti
