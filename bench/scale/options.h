#pragma once
// What `tutti bench scale` was asked for.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tutti::bench {

struct ScaleOptions {
  std::vector<int> ranks{16, 64, 128, 256};  ///< on all nodes together
  int nodes = 1;                             ///< network namespaces of this machine
  std::string rate = "1gbit";                ///< of each one's link
  int steps = 20;                            ///< optimizer steps of a toy model
  std::int64_t gradients = 0;                ///< its bytes of them; those of a few numbers are always there
  std::string backend = "auto";              ///< see CommunicatorOptions
  int repeats = 1;
  bool forked = false;  ///< ranks of a node share what LibTorch sets up when it is loaded
  int forks = 0;        ///< a rank's: it becomes so many of its node
  bool alone = false;   ///< a rank's: does the same work beside the others, which it does not meet: LibTorch's own cost
  std::string json;     ///< file for the rows; none when empty
  std::string results;  ///< where rank 0 leaves what it found for the process that started it
};

/// nullopt when help was asked for (and printed). `under_launcher`: this process is a rank already, so options about
/// ranks are refused. Throws UsageError.
std::optional<ScaleOptions> parse_scale_options(const std::vector<std::string>& words, bool under_launcher);

/// The options that a rank needs to do the same work.
std::vector<std::string> work_arguments(const ScaleOptions& options);

}  // namespace tutti::bench
