#pragma once
// The options of `tutti bench failures`.
#include <chrono>
#include <string>
#include <vector>

#include "command/arguments.h"

namespace tutti::bench {

/// The heartbeat timeout and the deadlock timeout of the ranks, instead of the default of 15 s. A trial then takes less
/// time, and false alarms are more likely.
inline constexpr std::chrono::seconds failure_timeout{2};

struct FailuresOptions : CommonOptions {
  std::vector<std::string> failures{"killed", "stopped", "astray", "cut"};
  std::vector<std::string> during{"collectives", "training"};
  int ranks = 4;  ///< of all nodes
  int nodes = 1;  ///< network namespaces of this machine; the failure "cut" always has 2
  int trials = 20;
  double false_alarm_minutes = 0;  ///< duration of the false-alarm run; 0: measure `failures` instead
  std::string failure;             ///< of a rank: its kind of failure
};

}  // namespace tutti::bench
