#pragma once
// The ways to train that are compared.
#include <optional>
#include <string>
#include <vector>

#include "local_sgd/options.h"
#include "tutti/train/local_sgd.h"

namespace tutti::bench {

struct Method {
  std::string name;
  LocalSGDOptions options;  ///< not enabled: gradients are synchronized in every step
};

/// All of them. The first one, synchronous training, is what the others are measured against.
std::vector<Method> all_methods(const LocalSGDBenchOptions& options);
/// Throws UsageError for a name that there is not.
Method method_named(const std::string& name, const LocalSGDBenchOptions& options);
std::string known_methods();

}  // namespace tutti::bench
