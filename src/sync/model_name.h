#pragma once
// Names of models in errors.
#include <string>
#include <vector>

#include "tutti/detail/sync/named_parameter.h"

namespace torch::nn {
class Module;
}

namespace tutti::sync {

/// The module's own name, or its class without namespaces.
std::string short_name_of(const torch::nn::Module& module);

/// "model_1 (Generator): ", the prefix of an error about all of `parameters`; empty if their models have no names.
std::string models_of(const std::vector<NamedParameter>& parameters);

}  // namespace tutti::sync
