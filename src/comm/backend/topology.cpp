#include "comm/backend/topology.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace tutti::comm {

// Nodes are renumbered by first appearance, so that the node numbers of a group have no gaps.
Topology make_topology(std::vector<int> node_of_rank, int rank) {
  std::map<int, int> renumbered;
  for (int& node : node_of_rank) node = renumbered.emplace(node, static_cast<int>(renumbered.size())).first->second;

  Topology topology;
  topology.node_rank = node_of_rank.at(static_cast<std::size_t>(rank));
  topology.num_nodes = static_cast<int>(renumbered.size());
  topology.local_rank =
      static_cast<int>(std::count(node_of_rank.begin(), node_of_rank.begin() + rank, topology.node_rank));
  topology.local_world_size =
      static_cast<int>(std::count(node_of_rank.begin(), node_of_rank.end(), topology.node_rank));
  topology.node_of_rank = std::move(node_of_rank);
  return topology;
}

Topology topology_of(const Topology& all, const std::vector<int>& members, int rank) {
  std::vector<int> node_of_rank;
  for (int member : members) node_of_rank.push_back(all.node_of_rank.at(static_cast<std::size_t>(member)));
  return make_topology(std::move(node_of_rank), rank);
}

bool has_equal_nodes(const Topology& topology) {
  const auto ranks = static_cast<int>(topology.node_of_rank.size());
  if (topology.num_nodes < 2 || ranks != topology.num_nodes * topology.local_world_size) return false;
  for (int rank = 0; rank < ranks; ++rank) {
    if (topology.node_of_rank[static_cast<std::size_t>(rank)] != rank / topology.local_world_size) return false;
  }
  return true;
}

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::vector<int> ranks_of_node(const Topology& topology) {
  std::vector<int> ranks;
  for (int local = 0; local < topology.local_world_size; ++local) {
    ranks.push_back(topology.node_rank * topology.local_world_size + local);
  }
  return ranks;
}

std::vector<int> ranks_across_nodes(const Topology& topology) {
  std::vector<int> ranks;
  for (int node = 0; node < topology.num_nodes; ++node) {
    ranks.push_back(node * topology.local_world_size + topology.local_rank);
  }
  return ranks;
}

}  // namespace tutti::comm
