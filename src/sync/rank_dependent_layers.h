#pragma once
// Layers whose forward writes their parameters from a rank's own data, so that replicas differ.
#include <string>

namespace torch::nn {
class Module;
}

namespace tutti::sync {

/// Throws UsageError for an Embedding or EmbeddingBag with max_norm whose weight is trained: forward renormalizes the
/// rows of the batch. A frozen weight is none: a row is renormalized before each use, to the same values.
void refuse_rank_dependent_layers(const torch::nn::Module& module);

/// The error for such a layer. `layer` names it: "the Embedding 'words'".
[[noreturn]] void refuse_max_norm(const std::string& layer);

}  // namespace tutti::sync
