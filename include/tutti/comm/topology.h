#pragma once
// Which rank lives on which node.
#include <vector>

namespace tutti {

/// Taken from the launcher's variables, not from what happens to connect.
struct Topology {
  int node_rank = 0;                 ///< this rank's node
  int num_nodes = 1;                 ///< nodes in the group
  int local_rank = 0;                ///< this rank's place on its node
  int local_world_size = 1;          ///< ranks of the group on this rank's node
  std::vector<int> node_of_rank{0};  ///< for each rank of the group its node

  bool operator==(const Topology&) const = default;
};

}  // namespace tutti
