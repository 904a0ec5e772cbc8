#pragma once
// What `tutti bench failures` was asked for.
#include <optional>
#include <string>
#include <vector>

namespace tutti::bench {

struct FailuresOptions {
  std::vector<std::string> failures{"killed", "stopped", "astray", "cut"};
  std::vector<std::string> during{"collectives", "training"};
  int ranks = 4;  ///< on all nodes together
  int nodes = 1;  ///< network namespaces of this machine; a link is cut on two, whatever this says
  int trials = 20;
  double false_alarm_minutes = 0;  ///< how long no rank fails, to count false alarms; 0: ranks fail, as `failures` says
  std::string json;                ///< file for the rows; none when empty
  std::string failure;             ///< a rank's
  std::string results;             ///< a rank's: where it leaves its line for the process that started it
};

/// nullopt when help was asked for (and printed). `under_launcher`: this process is a rank already, so options about
/// ranks are refused. Throws UsageError.
std::optional<FailuresOptions> parse_failures_options(const std::vector<std::string>& words, bool under_launcher);

}  // namespace tutti::bench
