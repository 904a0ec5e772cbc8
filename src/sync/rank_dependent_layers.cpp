#include "sync/rank_dependent_layers.h"

#include <torch/nn/modules/embedding.h>

#include "tutti/core/error.h"

namespace tutti::sync {

namespace {

template <typename Layer>
bool has_max_norm(const torch::nn::Module& module) {
  const auto* layer = module.as<Layer>();
  return layer != nullptr && layer->options.max_norm().has_value() && layer->weight.requires_grad();
}

}  // namespace

void refuse_max_norm(const std::string& layer) {
  throw UsageError(
      layer +
      " has max_norm: its forward renormalizes the rows of this rank's batch, so replicas would differ. "
      "Leave max_norm out and renormalize all rows after each step, on all ranks "
      "(torch::embedding_renorm_), or freeze the weight. If ranks may differ, set check_replicas to false");
}

void refuse_rank_dependent_layers(const torch::nn::Module& module) {
  for (const auto& item : module.named_modules()) {
    const torch::nn::Module& part = *item.value();
    const std::string name = item.key().empty() ? "" : " '" + item.key() + "'";
    if (has_max_norm<torch::nn::Embedding>(part)) refuse_max_norm("the Embedding" + name);
    if (has_max_norm<torch::nn::EmbeddingBag>(part)) refuse_max_norm("the EmbeddingBag" + name);
  }
}

}  // namespace tutti::sync
