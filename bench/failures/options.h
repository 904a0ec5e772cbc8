#pragma once
// The options of `tutti bench failures`.
#include <optional>
#include <string>
#include <vector>

namespace tutti::bench {

struct FailuresOptions {
  std::vector<std::string> failures{"killed", "stopped", "astray", "cut"};
  std::vector<std::string> during{"collectives", "training"};
  int ranks = 4;  ///< of all nodes
  int nodes = 1;  ///< network namespaces of this machine; the failure "cut" always has 2
  int trials = 20;
  double false_alarm_minutes = 0;  ///< duration of the false-alarm run; 0: measure `failures` instead
  std::string json;                ///< file for the rows; empty: none
  std::string failure;             ///< of a rank: its kind of failure
  std::string results;             ///< of a rank: the file in which it writes its line for the parent process
};

/// Returns nullopt after --help. `under_launcher`: this process is a rank, so options about ranks are refused. Throws
/// UsageError.
std::optional<FailuresOptions> parse_failures_options(const std::vector<std::string>& words, bool under_launcher);

}  // namespace tutti::bench
