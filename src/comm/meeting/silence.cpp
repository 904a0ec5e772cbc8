#include "comm/meeting/silence.h"

#include <algorithm>
#include <map>
#include <utility>

namespace tutti::comm {

Silence::Silence(const std::vector<int>& ranks, int holder, std::chrono::milliseconds patience, Deadline now)
    : holder_(holder), patience_(patience), asked_(now), last_look_(now) {
  for (const int rank : ranks) watched_.push_back({.rank = rank, .beat = 0, .changed = now});
}

void Silence::asked(Deadline now) {
  asked_ = now;
  waits_ = true;
}

void Silence::heard(const std::vector<std::int64_t>& beats, Deadline now) {
  waits_ = false;
  for (std::size_t i = 0; i < watched_.size() && i < beats.size(); ++i) {
    if (std::exchange(watched_[i].beat, beats[i]) != beats[i]) watched_[i].changed = now;
  }
}

bool Silence::lost() {
  waits_ = true;
  const auto holder = std::ranges::find(watched_, holder_, &Watched::rank);
  return holder != watched_.end() && holder->beat == has_left;
}

std::vector<int> Silence::silent(Deadline now) {
  const auto passed = now - std::exchange(last_look_, now);
  if (passed > longest_between_looks) {
    const auto stopped = passed - longest_between_looks;
    asked_ += stopped;
    for (Watched& watched : watched_) watched.changed += stopped;
  }
  // Without the store nothing is known of the others.
  if (waits_ && too_long(asked_, now)) return {holder_};
  std::vector<int> ranks;
  for (const Watched& watched : watched_) {
    if (watched.beat != has_left && too_long(watched.changed, now)) ranks.push_back(watched.rank);
  }
  std::ranges::sort(ranks);
  return ranks;
}

std::vector<int> watched_by(int rank, const std::vector<int>& node_of_rank) {
  std::map<int, std::vector<int>> ranks_of_node;
  std::size_t place = 0;  // of `rank` on its node
  const int own_node = node_of_rank.at(static_cast<std::size_t>(rank));
  for (std::size_t other = 0; other < node_of_rank.size(); ++other) {
    auto& ranks = ranks_of_node[node_of_rank[other]];
    if (static_cast<int>(other) == rank) place = ranks.size();
    ranks.push_back(static_cast<int>(other));
  }
  std::vector<int> watched;
  for (const auto& [node, ranks] : ranks_of_node) {
    if (node != own_node) watched.push_back(place < ranks.size() ? ranks[place] : ranks.front());
  }
  const auto& neighbours = ranks_of_node.at(own_node);
  if (ranks_of_node.size() > 1 && neighbours.size() > 1) watched.push_back(neighbours[(place + 1) % neighbours.size()]);
  std::ranges::sort(watched);
  return watched;
}

}  // namespace tutti::comm
