#include "comm/meeting/silence.h"

#include <algorithm>
#include <map>
#include <utility>

namespace tutti::comm {

Silence::Silence(const std::vector<int>& ranks, int holder, std::chrono::milliseconds patience, Deadline now)
    : holder_(holder), patience_(patience), asked_(now), heard_(now), last_look_(now) {
  for (const int rank : ranks) watched_.push_back({.rank = rank, .beat = 0, .changed = now});
}

void Silence::asked(Deadline now) {
  asked_ = now;
  waits_ = true;
}

void Silence::heard(const std::vector<std::int64_t>& beats, Deadline now) {
  waits_ = false;
  heard_ = now;
  for (std::size_t i = 0; i < watched_.size() && i < beats.size(); ++i) {
    if (std::exchange(watched_[i].beat, beats[i]) != beats[i]) watched_[i].changed = now;
  }
}

bool Silence::lost() {
  waits_ = true;
  return has_said_good_bye(holder_);
}

bool Silence::has_said_good_bye(int rank) const {
  const auto watched = std::ranges::find(watched_, rank, &Watched::rank);
  return watched != watched_.end() && watched->beat == has_left;
}

std::vector<int> Silence::silent(Deadline now) {
  const auto passed = now - std::exchange(last_look_, now);
  if (passed > longest_between_looks) {
    const auto stopped = passed - longest_between_looks;
    asked_ += stopped;
    for (Watched& watched : watched_) watched.changed += stopped;
  }
  // Without the store nothing is known of the others: only until the last answer has any of them been silent.
  if (waits_ && too_long(asked_, now)) return {holder_};
  std::vector<int> ranks;
  for (const Watched& watched : watched_) {
    if (watched.beat != has_left && too_long(watched.changed, heard_)) ranks.push_back(watched.rank);
  }
  std::ranges::sort(ranks);
  return ranks;
}

std::chrono::milliseconds between_beats(int size) {
  constexpr int often = 64;
  constexpr std::chrono::milliseconds shortest(150);
  return std::max(shortest, shortest * size / often);
}

int next_on_node(int rank, const std::vector<int>& node_of_rank) {
  const auto size = static_cast<int>(node_of_rank.size());
  const auto node_of = [&](int other) { return node_of_rank.at(static_cast<std::size_t>(other)); };
  for (int step = 1; step < size; ++step) {
    const int other = (rank + step) % size;
    if (node_of(other) == node_of(rank)) return other;
  }
  return -1;
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
  const int neighbour = next_on_node(rank, node_of_rank);
  if (ranks_of_node.size() > 1 && neighbour >= 0) watched.push_back(neighbour);
  std::ranges::sort(watched);
  return watched;
}

}  // namespace tutti::comm
