#pragma once
// Which ranks have not been heard of for long. Pure.
//
// Crews (crew.h) raise numbers at the store while they live (pairs.h), and see those of others. A number that stands
// still means that its machine does; a store that does not answer, that its holder's machine does. Neither says
// anything of a rank that is merely slow: a thread that does not train raises the number.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "comm/engine/transfer.h"

namespace tutti::comm {

/// What is heard of a crew that has left: it will be silent, and nobody minds.
inline constexpr auto has_left = std::numeric_limits<std::int64_t>::min();

class Silence {
 public:
  /// Of crews, by their first ranks. `holder` serves the store; -1 where none of the ranks does. They are given up
  /// after `patience` without a sign.
  Silence(const std::vector<int>& ranks, int holder, std::chrono::milliseconds patience, Deadline now);

  /// A request of this rank to the store goes out, and is answered.
  void asked(Deadline now);
  void answered() { waits_ = false; }
  /// What the store has said at `when` to this rank or to another one of its crew: the numbers of the ranks, in the
  /// order in which they were given.
  void heard(const std::vector<std::int64_t>& beats, Deadline when);

  /// The store has ended, without an answer. Returns whether its holder had said good-bye, so that nobody minds.
  bool lost();
  void holder_says_good_bye() { holder_has_left_ = true; }

  struct Found {
    std::vector<int> ranks;  ///< silent for too long, ascending
    bool store = false;      ///< has not answered for too long: nothing is known of the ranks then
  };
  Found look(Deadline now);
  /// When the next look is meant to be. A process that comes to it much later was stopped itself: what passed meanwhile
  /// does not count.
  void sleeps_until(Deadline next_look) { next_look_ = next_look; }
  /// Whether half the patience with someone is over, and not all of it. It is worth looking closely then.
  bool is_in_doubt(Deadline now) const;

 private:
  struct Watched {
    int rank = 0;
    std::int64_t beat = 0;
    Deadline changed;
  };
  Clock::duration silence_of_store(Deadline now) const { return waits_ ? now - asked_ : Clock::duration::zero(); }
  // Only until the last answer has any of them been silent.
  Clock::duration silence_of(const Watched& watched) const {
    return watched.beat == has_left ? Clock::duration::zero() : heard_ - watched.changed;
  }

  std::vector<Watched> watched_;
  int holder_;
  bool holder_has_left_ = false;
  std::chrono::milliseconds patience_;
  Deadline asked_;
  bool waits_ = false;  // for an answer
  Deadline heard_;      // the last answer
  Deadline next_look_;
};

/// For how long a process of this machine has been stopped, by looks that are rare until one of them sees it. Pure.
class StoppedProcess {
 public:
  static constexpr auto between_looks = std::chrono::milliseconds(500);
  static constexpr auto between_close_looks = std::chrono::milliseconds(50);  // once it is stopped

  explicit StoppedProcess(Deadline now) : last_(now) {}

  /// Returns for how long, as far as is known. It happened between two looks: the middle is taken. Looks that are far
  /// apart once it is stopped do not count in full, since whoever looks may have been stopped with it.
  Clock::duration look(Deadline now, bool stopped);
  bool is_stopped() const { return stopped_ > Clock::duration::zero(); }
  /// Whether `patience` with it is over. In a hurry it may be, and that is enough: whoever waits for the process has
  /// seen it, and may leave.
  bool is_given_up(Clock::duration patience, bool in_a_hurry) const {
    const auto surely = std::max<Clock::duration>(patience - between_looks / 2, patience / 2);
    return stopped_ >= (in_a_hurry ? surely : patience);
  }

 private:
  Deadline last_;
  Clock::duration stopped_ = Clock::duration::zero();
};

/// How much time passes between two signs of life of one of so many crews: 250 ms up to 64 of them, then in proportion
/// to their number, so that whoever serves the store has no more than some 500 a second to answer, two of each.
std::chrono::milliseconds between_beats(int crews);

}  // namespace tutti::comm
