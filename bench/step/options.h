#pragma once
// The options of `tutti bench step`.
#include <optional>
#include <string>
#include <vector>

#include "sync/options.h"

namespace tutti::bench {

struct StepOptions {
  int batches = 10;  ///< batches in one repeat of a training loop
  int steps = 1;     ///< batches in an optimizer step
  int batch_size = 4;
  int width = 256;
  int layers = 6;
  int context = 64;
  int vocabulary = 4096;
  int calls = 5;  ///< calls of a part that is timed alone, in one repeat
  int repeats = 5;
  std::string json;  ///< file for the rows; none when empty
};

/// Returns nullopt after --help. Throws UsageError.
std::optional<StepOptions> parse_step_options(const std::vector<std::string>& words);

/// Returns the model and batches of `tutti bench sync`.
SyncOptions workload_of(const StepOptions& options);

}  // namespace tutti::bench
