#include <algorithm>
#include <map>

#include "comm/engine/engine.h"

namespace tutti::comm {

// Nodes are numbered anew by first appearance, so that a group of some ranks has no holes in its numbers.
NodeLayout make_layout(std::vector<int> node_of_rank, int rank) {
  std::map<int, int> renumbered;
  for (int& node : node_of_rank) node = renumbered.emplace(node, static_cast<int>(renumbered.size())).first->second;

  NodeLayout layout;
  layout.node_rank = node_of_rank.at(static_cast<std::size_t>(rank));
  layout.num_nodes = static_cast<int>(renumbered.size());
  layout.local_rank = static_cast<int>(std::count(node_of_rank.begin(), node_of_rank.begin() + rank, layout.node_rank));
  layout.local_size = static_cast<int>(std::count(node_of_rank.begin(), node_of_rank.end(), layout.node_rank));
  layout.node_of_rank = std::move(node_of_rank);
  return layout;
}

NodeLayout layout_of(const NodeLayout& all, const std::vector<int>& members, int rank) {
  std::vector<int> node_of_rank;
  for (int member : members) node_of_rank.push_back(all.node_of_rank.at(static_cast<std::size_t>(member)));
  return make_layout(std::move(node_of_rank), rank);
}

}  // namespace tutti::comm
