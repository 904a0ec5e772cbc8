#include "comm/health/heartbeat_pairs.h"

#include <algorithm>
#include <cstddef>
#include <map>

namespace tutti::comm {
namespace {

void add_unique(std::vector<HeartbeatPair>& pairs, int lower, int higher) {
  const HeartbeatPair pair{.lower = std::min(lower, higher), .higher = std::max(lower, higher)};
  if (std::ranges::find(pairs, pair) == pairs.end()) pairs.push_back(pair);
}

std::map<int, std::vector<int>> by_node(const std::vector<int>& node_of_rank) {
  std::map<int, std::vector<int>> ranks_of_node;
  for (std::size_t rank = 0; rank < node_of_rank.size(); ++rank) {
    ranks_of_node[node_of_rank[rank]].push_back(static_cast<int>(rank));
  }
  return ranks_of_node;
}

}  // namespace

std::vector<HeartbeatPair> pairs_between_nodes(const std::vector<int>& node_of_rank) {
  const auto ranks_of_node = by_node(node_of_rank);
  std::vector<HeartbeatPair> pairs;
  if (ranks_of_node.size() < 2) return pairs;
  for (auto node = ranks_of_node.begin(); node != ranks_of_node.end(); ++node) {
    const auto after = std::next(node);
    const auto& next = after == ranks_of_node.end() ? ranks_of_node.begin()->second : after->second;
    for (std::size_t index = 0; index < node->second.size(); ++index) {
      add_unique(pairs, node->second[index], index < next.size() ? next[index] : next.front());
    }
  }
  return pairs;
}

std::vector<HeartbeatPair> pairs_inside_nodes(const std::vector<int>& node_of_rank) {
  const auto ranks_of_node = by_node(node_of_rank);
  std::vector<HeartbeatPair> pairs;
  for (const auto& [node, ranks] : ranks_of_node) {
    for (std::size_t index = 0; index < ranks.size(); ++index) {
      const int next = ranks[(index + 1) % ranks.size()];
      if (next != ranks[index]) add_unique(pairs, ranks[index], next);
    }
  }
  return pairs;
}

std::vector<HeartbeatPair> pairs_between_leaders(const std::vector<int>& node_of_rank, const std::vector<int>& leader) {
  std::vector<int> leaders;  // their first ranks
  std::vector<int> node_of_leader;
  for (std::size_t rank = 0; rank < leader.size(); ++rank) {
    if (leader[rank] != static_cast<int>(rank)) continue;
    leaders.push_back(leader[rank]);
    node_of_leader.push_back(node_of_rank[rank]);
  }
  std::vector<HeartbeatPair> pairs;
  for (const auto& found : {pairs_between_nodes(node_of_leader), pairs_inside_nodes(node_of_leader)}) {
    for (const HeartbeatPair& pair : found) {
      const auto leader_of = [&](int index) { return leaders[static_cast<std::size_t>(index)]; };
      pairs.push_back({.lower = leader_of(pair.lower), .higher = leader_of(pair.higher)});
    }
  }
  return pairs;
}

}  // namespace tutti::comm
