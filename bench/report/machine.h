#pragma once
// Where and with what the figures were taken.
#include <string>

namespace tutti::bench {

struct Machine {
  int cores = 1;
  std::string cpu;
  double load = 0;  ///< the load average before the run: figures from a busy machine are to be read with care
  std::string libtorch;
  std::string commit;
};

Machine describe_machine();

}  // namespace tutti::bench
