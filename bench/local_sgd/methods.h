#pragma once
// The ways to train that are compared.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "local_sgd/options.h"
#include "tutti/comm/wire_codec.h"
#include "tutti/local_sgd/local_sgd_algorithm_options.h"
#include "tutti/train/local_sgd.h"

namespace tutti::bench {

struct Method {
  std::string name;
  LocalSGDOptions options;                            ///< not enabled: gradients are synchronized in every step
  std::shared_ptr<const WireCodec> gradient_codec{};  ///< for gradients
  /// Outer steps that every rank takes by itself, on top of synchronized ones: all of them take the same.
  std::optional<LocalSgdAlgorithmOptions> outer_alone{};

  /// Optimizer steps from one exchange of models to the next; 0 where gradients are exchanged in each.
  std::int64_t interval() const { return options.enabled ? options.local_sgd_steps : 0; }
};

/// All of them. The first one, synchronous training, is what the others are measured against.
std::vector<Method> all_methods(const LocalSGDBenchOptions& options);
/// Throws UsageError for a name that there is not.
Method method_named(const std::string& name, const LocalSGDBenchOptions& options);
std::string known_methods();

}  // namespace tutti::bench
