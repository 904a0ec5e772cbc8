#pragma once
// What `tutti bench step` was asked for.
#include <optional>
#include <string>
#include <vector>

#include "sync/options.h"

namespace tutti::bench {

struct StepOptions {
  int batches = 10;  ///< in one repeat of a training loop
  int steps = 1;     ///< batches in an optimizer step
  int batch_size = 4;
  int width = 256;
  int layers = 6;
  int context = 64;
  int vocabulary = 4096;
  int calls = 5;  ///< of what is timed alone, in one repeat
  int repeats = 5;
  std::string json;  ///< file for the rows; none when empty
};

/// nullopt when help was asked for (and printed). Throws UsageError.
std::optional<StepOptions> parse_step_options(const std::vector<std::string>& words);

/// The model and batches of `tutti bench sync`.
SyncOptions workload_of(const StepOptions& options);

}  // namespace tutti::bench
