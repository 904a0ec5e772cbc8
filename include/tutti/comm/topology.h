#pragma once
// The node of each rank of a group.
#include <vector>

namespace tutti {

/// The topology of a group. It comes from the launcher's variables; Communicator::connect(store) detects it.
struct Topology {
  int node_rank = 0;                 ///< the number of this rank's node
  int num_nodes = 1;                 ///< the number of nodes in the group
  int local_rank = 0;                ///< this rank's number on its node
  int local_world_size = 1;          ///< the number of ranks of the group on this rank's node
  std::vector<int> node_of_rank{0};  ///< by rank of the group: the number of its node

  bool operator==(const Topology&) const = default;
};

}  // namespace tutti
