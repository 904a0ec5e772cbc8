#include "comm/meeting/pairs.h"

#include <algorithm>
#include <cstddef>
#include <map>

namespace tutti::comm {
namespace {

void add_once(std::vector<Pair>& pairs, int one, int other) {
  const Pair pair{.one = std::min(one, other), .other = std::max(one, other)};
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

std::vector<Pair> pairs_between_nodes(const std::vector<int>& node_of_rank) {
  const auto ranks_of_node = by_node(node_of_rank);
  std::vector<Pair> pairs;
  if (ranks_of_node.size() < 2) return pairs;
  for (auto node = ranks_of_node.begin(); node != ranks_of_node.end(); ++node) {
    const auto after = std::next(node);
    const auto& next = after == ranks_of_node.end() ? ranks_of_node.begin()->second : after->second;
    for (std::size_t place = 0; place < node->second.size(); ++place) {
      add_once(pairs, node->second[place], place < next.size() ? next[place] : next.front());
    }
  }
  return pairs;
}

std::vector<Pair> pairs_inside_nodes(const std::vector<int>& node_of_rank) {
  const auto ranks_of_node = by_node(node_of_rank);
  std::vector<Pair> pairs;
  for (const auto& [node, ranks] : ranks_of_node) {
    for (std::size_t place = 0; place < ranks.size(); ++place) {
      const int next = ranks[(place + 1) % ranks.size()];
      if (next != ranks[place]) add_once(pairs, ranks[place], next);
    }
  }
  return pairs;
}

std::vector<Pair> pairs_of_crews(const std::vector<int>& node_of_rank, const std::vector<int>& first) {
  std::vector<int> crews;  // their first ranks
  std::vector<int> node_of_crew;
  for (std::size_t rank = 0; rank < first.size(); ++rank) {
    if (first[rank] != static_cast<int>(rank)) continue;
    crews.push_back(first[rank]);
    node_of_crew.push_back(node_of_rank[rank]);
  }
  std::vector<Pair> pairs;
  for (const auto& found : {pairs_between_nodes(node_of_crew), pairs_inside_nodes(node_of_crew)}) {
    for (const Pair& pair : found) {
      const auto first_of = [&](int crew) { return crews[static_cast<std::size_t>(crew)]; };
      pairs.push_back({.one = first_of(pair.one), .other = first_of(pair.other)});
    }
  }
  return pairs;
}

}  // namespace tutti::comm
