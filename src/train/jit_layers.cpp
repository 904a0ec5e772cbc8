#include "train/jit_layers.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include <algorithm>
#include <string>

#include "sync/rank_dependent_layers.h"
#include "tutti/core/error.h"
#include "tutti/train/jit_module.h"

namespace tutti {

namespace {

bool trains(const torch::jit::Module& layer) {
  for (const at::Tensor& parameter : layer.parameters(/*recurse=*/false)) {
    if (parameter.requires_grad()) return true;
  }
  return false;
}

/// An attribute or a constant of a layer; None if there is none.
c10::IValue option_of(const torch::jit::Module& layer, const std::string& name) {
  return layer.hasattr(name) ? layer.attr(name) : c10::IValue();
}

/// Nested blocks are not searched: LibTorch's own Embedding calls it in a branch for a max_norm that may be None.
bool calls_embedding_renorm(const torch::jit::Module& layer) {
  static const auto renorm = c10::Symbol::fromQualString("aten::embedding_renorm_");
  for (const torch::jit::Method& method : layer.get_methods()) {
    for (const torch::jit::Node* node : method.graph()->nodes()) {
      if (node->kind() == renorm) return true;
    }
  }
  return false;
}

}  // namespace

void refuse_rank_dependent_layers(const torch::nn::Module& module) {
  sync::refuse_rank_dependent_layers(module);
  for (const auto& item : module.named_modules()) {
    const auto* script = dynamic_cast<const JitModule*>(item.value().get());
    if (script == nullptr) continue;
    // Each submodule of a JitModule is a JitModule, so only this layer is examined.
    const torch::jit::Module& layer = script->script();
    if (trains(layer) && (!option_of(layer, "max_norm").isNone() || calls_embedding_renorm(layer))) {
      sync::refuse_max_norm("the scripted layer" + (item.key().empty() ? "" : " '" + item.key() + "'"));
    }
  }
}

void mark_sparse_tables(const torch::nn::Module& module, std::vector<NamedParameter>& parameters) {
  for (const auto& part : module.modules()) {
    const auto* script = dynamic_cast<const JitModule*>(part.get());
    if (script == nullptr) continue;
    const c10::IValue sparse = option_of(script->script(), "sparse");
    const c10::IValue weight = option_of(script->script(), "weight");
    if (!sparse.isBool() || !sparse.toBool() || !weight.isTensor()) continue;
    for (NamedParameter& parameter : parameters)
      parameter.sparse = parameter.sparse || parameter.tensor.is_same(weight.toTensor());
  }
}

void require_unoptimized_scripts(const torch::nn::Module& module) {
  const auto modules = module.modules();
  const auto is_script = [](const auto& one) { return dynamic_cast<const JitModule*>(one.get()) != nullptr; };
  if (!torch::jit::getGraphExecutorOptimize() || std::ranges::none_of(modules, is_script)) return;
  throw UsageError(
      "a JitModule with `reproducible`: after its first passes LibTorch runs optimized code for a script, which rounds "
      "differently. Call torch::jit::setGraphExecutorOptimize(false) first");
}

}  // namespace tutti
