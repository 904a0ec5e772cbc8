#pragma once
// The backends of the matrix.
#include <string>
#include <vector>

#include "support/simulated_device/ranks.h"

namespace tutti::test {

struct MatrixBackend {
  std::string name;
  SimulatedRanks ranks;
  bool sums_in_fixed_order = true;
};

inline const std::vector<MatrixBackend>& backends() {
  static const std::vector<MatrixBackend> all{
      {.name = "nccl", .ranks = {.size = 2}, .sums_in_fixed_order = false},
      {.name = "staged", .ranks = {.size = 2, .backend = "staged", .c10d_backend = false}},
      {.name = "staged_shared_memory", .ranks = {.size = 2, .backend = "staged:shared_memory", .c10d_backend = false}},
      {.name = "staged_hierarchical",
       .ranks = {.size = 4, .num_nodes = 2, .backend = "staged:hierarchical", .c10d_backend = false}},
  };
  return all;
}

}  // namespace tutti::test
