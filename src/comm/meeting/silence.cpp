#include "comm/meeting/silence.h"

#include <algorithm>
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
  const auto holder = std::ranges::find(watched_, holder_, &Watched::rank);
  return holder_has_left_ || (holder != watched_.end() && holder->beat == has_left);
}

Silence::Found Silence::look(Deadline now) {
  const auto passed = now - std::exchange(last_look_, now);
  if (passed > longest_between_looks) {
    const auto stopped = passed - longest_between_looks;
    asked_ += stopped;
    for (Watched& watched : watched_) watched.changed += stopped;
  }
  if (waits_ && too_long(asked_, now)) return {.ranks = {}, .store = true};
  Found found;
  for (const Watched& watched : watched_) {
    // Only until the last answer has any of them been silent.
    if (watched.beat != has_left && too_long(watched.changed, heard_)) found.ranks.push_back(watched.rank);
  }
  std::ranges::sort(found.ranks);
  return found;
}

std::chrono::milliseconds between_beats(int size) {
  constexpr int often = 64;
  constexpr std::chrono::milliseconds shortest(150);
  return std::max(shortest, shortest * size / often);
}

}  // namespace tutti::comm
