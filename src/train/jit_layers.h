#pragma once
// Layers of any module, also of scripts, whose forward writes their parameters from a rank's own data.
#include <vector>

#include "tutti/detail/sync/named_parameter.h"

namespace torch::nn {
class Module;
}

namespace tutti {

/// As sync::refuse_rank_dependent_layers(), and also for the layers of JitModules: a scripted Embedding with max_norm,
/// or a traced or scripted method that calls embedding_renorm_.
void refuse_rank_dependent_layers(const torch::nn::Module& module);

/// Sets `sparse` for the weights of scripted embeddings with sparse=True.
void mark_sparse_tables(const torch::nn::Module& module, std::vector<NamedParameter>& parameters);

/// Throws UsageError if the module has a JitModule and LibTorch optimizes scripts: their bits change after the first
/// passes of a process, whose number depends on the number of ranks.
void require_unoptimized_scripts(const torch::nn::Module& module);

}  // namespace tutti
