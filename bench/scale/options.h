#pragma once
// The options of `tutti bench scale`.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tutti::bench {

struct ScaleOptions {
  std::vector<int> ranks{16, 64, 128, 256};  ///< of all nodes
  int nodes = 1;                             ///< network namespaces of this machine
  std::string rate = "1gbit";                ///< of each node's link
  int steps = 20;                            ///< optimizer steps of a toy model
  std::int64_t gradients = 0;                ///< bytes of gradients, in addition to a few numbers
  std::string backend = "auto";              ///< see CommunicatorOptions
  int repeats = 1;
  bool forked = false;  ///< ranks of a node share the memory of a loaded LibTorch
  int forks = 0;        ///< of a rank: the number of ranks that it forks on its node
  bool alone = false;   ///< of a rank: same work without connecting, for the time of LibTorch alone
  std::string json;     ///< file for the rows; empty: none
  std::string results;  ///< file in which ranks write their usage for the parent process
};

/// Returns nullopt after --help. `under_launcher`: this process is a rank, so options about ranks are refused. Throws
/// UsageError.
std::optional<ScaleOptions> parse_scale_options(const std::vector<std::string>& words, bool under_launcher);

/// Returns the arguments with which a rank does the same work.
std::vector<std::string> work_arguments(const ScaleOptions& options);

}  // namespace tutti::bench
