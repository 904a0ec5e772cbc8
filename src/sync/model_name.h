#pragma once
// How errors call models.
#include <string>
#include <vector>

#include "tutti/sync/named_parameter.h"

namespace torch::nn {
class Module;
}

namespace tutti::sync {

/// The module's own name, or its class without namespaces.
std::string short_name_of(const torch::nn::Module& module);

/// "model_1 (Generator): " in front of an error about all of `parameters`; empty where their models have no names.
std::string models_of(const std::vector<NamedParameter>& parameters);

}  // namespace tutti::sync
