#pragma once
// Makes the topologies of groups.
#include <vector>

#include "tutti/comm/topology.h"

namespace tutti::comm {

/// The topology as seen by `rank`, with rank r on node node_of_rank[r].
Topology make_topology(std::vector<int> node_of_rank, int rank);
/// The topology of the group whose rank r is rank members[r] of `all`, as seen by `rank` of the group.
Topology topology_of(const Topology& all, const std::vector<int>& members, int rank);
/// Whether there are several nodes, and every node has the same number of consecutive ranks.
bool has_equal_nodes(const Topology& topology);
/// 0 to size - 1.
std::vector<int> all_ranks(int size);
/// With has_equal_nodes(): the ranks of this node, and those with this local rank on all nodes.
std::vector<int> ranks_of_node(const Topology& topology);
std::vector<int> ranks_across_nodes(const Topology& topology);

}  // namespace tutti::comm
