#pragma once
// The options of `tutti bench local-sgd`.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tutti::bench {

struct LocalSGDBenchOptions {
  // The ranks.
  int ranks = 2;
  int nodes = 1;
  std::string rate = "100mbit";
  // The training.
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
  /// Report the loss on the half of the held-out text on which hyperparameters are chosen, not on the other half.
  bool validate = false;
  std::vector<std::string> methods{};  ///< empty: all methods
  std::string json;
  std::string picture;
  std::string from;  ///< file of rows to draw; nothing is run
};

/// Returns nullopt after --help. Throws UsageError.
std::optional<LocalSGDBenchOptions> parse_local_sgd_options(const std::vector<std::string>& words, bool under_launcher);

/// Returns the arguments with which a rank does the same work.
std::vector<std::string> work_arguments(const LocalSGDBenchOptions& options);

}  // namespace tutti::bench
