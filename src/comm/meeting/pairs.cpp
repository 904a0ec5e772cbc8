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

}  // namespace

int next_on_node(int rank, const std::vector<int>& node_of_rank) {
  const auto size = static_cast<int>(node_of_rank.size());
  const auto node_of = [&](int other) { return node_of_rank.at(static_cast<std::size_t>(other)); };
  for (int step = 1; step < size; ++step) {
    const int other = (rank + step) % size;
    if (node_of(other) == node_of(rank)) return other;
  }
  return -1;
}

std::vector<Pair> pairs_between_nodes(const std::vector<int>& node_of_rank) {
  std::map<int, std::vector<int>> ranks_of_node;
  for (std::size_t rank = 0; rank < node_of_rank.size(); ++rank) {
    ranks_of_node[node_of_rank[rank]].push_back(static_cast<int>(rank));
  }
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
  std::vector<Pair> pairs;
  for (std::size_t rank = 0; rank < node_of_rank.size(); ++rank) {
    const int next = next_on_node(static_cast<int>(rank), node_of_rank);
    if (next >= 0) add_once(pairs, static_cast<int>(rank), next);
  }
  return pairs;
}

}  // namespace tutti::comm
