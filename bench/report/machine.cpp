#include "report/machine.h"

#include <torch/headeronly/version.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "report/commit.h"
#include "report/statistics.h"

namespace tutti::bench {
namespace {

std::string cpu_model() {
  std::ifstream information("/proc/cpuinfo");
  for (std::string line; std::getline(information, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown CPU";
}

}  // namespace

Machine describe_machine() {
  Machine machine{.cores = static_cast<int>(std::thread::hardware_concurrency()),
                  .cpu = cpu_model(),
                  .libtorch = TORCH_VERSION,
                  .commit = commit};
  ::getloadavg(&machine.load, 1);
  return machine;
}

std::string describe(const Machine& machine) {
  return counted(machine.cores, "core") + " of " + machine.cpu + ", load " + number(machine.load, 1) +
         " before the run; LibTorch " + machine.libtorch + "; tutti " + machine.commit;
}

}  // namespace tutti::bench
