#pragma once
// The options of `tutti bench all-reduce`.
#include <cstdint>
#include <string>
#include <vector>

#include "command/arguments.h"

namespace tutti::bench {

struct AllReduceOptions : CommonOptions {
  std::vector<int> ranks{2};                                                         ///< of all nodes
  Place place;                                                                       ///< its nodes and their rate
  std::vector<std::int64_t> sizes{4 << 10, 64 << 10, 1 << 20, 25 << 20, 100 << 20};  ///< bytes
  std::vector<std::string> dtypes{"float32"};
  std::vector<std::string> backends{"auto", "tcp"};  ///< of tutti
  int repeats = 5;
  int milliseconds = 50;  ///< least duration of a repeat of one or more calls
  bool mpi = true;        ///< also measure MPI, if the build found it
};

}  // namespace tutti::bench
