#pragma once
// The options of `tutti bench scale`.
#include <cstdint>
#include <string>
#include <vector>

#include "command/arguments.h"

namespace tutti::bench {

struct ScaleOptions : CommonOptions {
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
};

}  // namespace tutti::bench
