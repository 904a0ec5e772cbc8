#pragma once
// The training methods under comparison.
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
  LocalSGDOptions options;                            ///< if not enabled, every step synchronizes gradients
  std::shared_ptr<const WireCodec> gradient_codec{};  ///< of gradients
  /// Outer steps in addition to synchronized steps. Every rank computes them without communication, with equal results.
  std::optional<LocalSgdAlgorithmOptions> outer_alone{};

  /// Optimizer steps between two averages of the models; 0 if every step synchronizes gradients.
  std::int64_t interval() const { return options.enabled ? options.local_sgd_steps : 0; }
};

/// Returns all methods. The first is synchronous training, the baseline of the comparison.
std::vector<Method> all_methods(const LocalSGDBenchOptions& options);
/// Returns the methods that the options name.
std::vector<Method> selected_methods(const LocalSGDBenchOptions& options);

}  // namespace tutti::bench
