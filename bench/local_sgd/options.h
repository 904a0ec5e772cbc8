#pragma once
// What `tutti bench local-sgd` was asked for.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tutti::bench {

struct LocalSGDBenchOptions {
  // Where it runs.
  int ranks = 2;
  int nodes = 1;
  std::string rate = "100mbit";
  // What is trained, and how.
  std::string data;  ///< file or folder of text
  std::int64_t steps = 500;
  std::int64_t local_steps = 21;
  std::int64_t batch_size = 4;
  std::int64_t width = 128;
  std::int64_t layers = 3;
  std::int64_t context = 64;
  double learning_rate = 3e-3;
  double outer_learning_rate = 0.7;
  double outer_momentum = 0.6;
  int seeds = 3;
  /// Report the loss on the part of the held-out text that hyperparameters are chosen on, not on the other one.
  bool validate = false;
  std::vector<std::string> methods{};  ///< all when empty
  std::string json;
  std::string picture;
  std::string from;  ///< rows to draw, instead of running
};

/// nullopt when help was asked for (and printed). Throws UsageError.
std::optional<LocalSGDBenchOptions> parse_local_sgd_options(const std::vector<std::string>& words, bool under_launcher);

/// The options that a rank needs to do the same work.
std::vector<std::string> work_arguments(const LocalSGDBenchOptions& options);

}  // namespace tutti::bench
