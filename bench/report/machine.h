#pragma once
// The machine and the versions of a measurement.
#include <string>

namespace tutti::bench {

struct Machine {
  int cores = 1;
  std::string cpu;
  double load = 0;  ///< load average before the run; figures of a busy machine are unreliable
  std::string libtorch;
  std::string commit;
};

Machine describe_machine();

/// Returns the line that describes the machine under a table.
std::string describe(const Machine& machine);

}  // namespace tutti::bench
