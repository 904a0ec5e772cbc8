#include "comm/meeting/silence.h"

#include <algorithm>
#include <utility>

namespace tutti::comm {

Silence::Silence(const std::vector<int>& ranks, int holder, std::chrono::milliseconds patience, Deadline now)
    : holder_(holder), patience_(patience), asked_(now), heard_(now), next_look_(now) {
  for (const int rank : ranks) watched_.push_back({.rank = rank, .beat = 0, .changed = now});
}

void Silence::asked(Deadline now) {
  asked_ = now;
  waits_ = true;
}

void Silence::heard(const std::vector<std::int64_t>& beats, Deadline when) {
  heard_ = std::max(heard_, when);
  for (std::size_t i = 0; i < watched_.size() && i < beats.size(); ++i) {
    if (std::exchange(watched_[i].beat, beats[i]) != beats[i]) watched_[i].changed = when;
  }
}

bool Silence::lost() {
  waits_ = true;
  const auto holder = std::ranges::find(watched_, holder_, &Watched::rank);
  return holder_has_left_ || (holder != watched_.end() && holder->beat == has_left);
}

Silence::Found Silence::look(Deadline now) {
  constexpr auto may_be_late = std::chrono::milliseconds(150);
  const auto stopped = now - std::exchange(next_look_, now) - may_be_late;
  if (stopped > Clock::duration::zero()) {
    asked_ += stopped;
    for (Watched& watched : watched_) watched.changed += stopped;
  }
  if (silence_of_store(now) >= patience_) return {.ranks = {}, .store = true};
  Found found;
  for (const Watched& watched : watched_) {
    if (silence_of(watched) >= patience_) found.ranks.push_back(watched.rank);
  }
  std::ranges::sort(found.ranks);
  return found;
}

bool Silence::is_in_doubt(Deadline now) const {
  const auto in_doubt = [&](Clock::duration silence) { return silence >= patience_ / 2 && silence < 2 * patience_; };
  return in_doubt(silence_of_store(now)) ||
         std::ranges::any_of(watched_, [&](const Watched& watched) { return in_doubt(silence_of(watched)); });
}

Clock::duration StoppedProcess::look(Deadline now, bool stopped) {
  const auto passed = now - std::exchange(last_, now);
  if (!stopped) return stopped_ = Clock::duration::zero();
  stopped_ += is_stopped() ? std::min<Clock::duration>(passed, 2 * between_close_looks)
                           : std::min<Clock::duration>(passed, between_looks) / 2;
  return stopped_;
}

std::chrono::milliseconds between_beats(int crews) {
  constexpr int often = 64;
  constexpr std::chrono::milliseconds shortest(250);
  return std::max(shortest, shortest * crews / often);
}

}  // namespace tutti::comm
