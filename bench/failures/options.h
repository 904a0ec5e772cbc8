#pragma once
// The options of `tutti bench failures`.
#include <chrono>
#include <string>
#include <vector>

#include "command/arguments.h"
#include "tutti/comm/communicator.h"

namespace tutti::bench {

struct FailuresOptions : CommonOptions {
  std::vector<std::string> failures{"killed", "stopped", "astray", "cut"};
  std::vector<std::string> during{"collectives", "training"};
  int ranks = 4;  ///< of all nodes
  int nodes = 1;  ///< network namespaces of this machine; the failure "cut" always has 2
  int trials = 20;
  /// The heartbeat timeout and the deadlock timeout of the ranks, in seconds. With less than the default of 15 s a
  /// trial takes less time, and false alarms are more likely.
  int timeout = 2;
  double false_alarm_minutes = 0;  ///< duration of the false-alarm run; 0: measure `failures` instead
  double stall = 0.8;              ///< of a false-alarm run, in seconds: how long a rank that has not failed is stopped
  std::string failure;             ///< of a rank: its kind of failure

  CommunicatorOptions communicator() const {
    const std::chrono::seconds seconds(timeout);
    return {.heartbeat_timeout = seconds, .deadlock_timeout = seconds};
  }
};

}  // namespace tutti::bench
