#pragma once
// Which ranks have not been heard of for long. Pure.
//
// Every rank raises numbers at the store while it lives (pairs.h), and sees those of others. A number that stands still
// means that its rank's process or machine does; a store that does not answer, that its holder's machine does. Neither
// says anything of a rank that is merely slow: a thread that does not train raises the number.
#include <cstdint>
#include <vector>

#include "comm/engine/transfer.h"

namespace tutti::comm {

/// What stands at the store for a rank that has left: it will be silent, and nobody minds.
inline constexpr std::int64_t has_left = -1;

class Silence {
 public:
  /// `holder` serves the store; -1 where none of the ranks does. They are given up after `patience` without a sign.
  Silence(const std::vector<int>& ranks, int holder, std::chrono::milliseconds patience, Deadline now);

  /// A request to the store goes out.
  void asked(Deadline now);
  /// Its answer: the numbers of the ranks, in the order in which they were given.
  void heard(const std::vector<std::int64_t>& beats, Deadline now);

  /// The store has ended, without an answer. Returns whether its holder had said good-bye, so that nobody minds.
  bool lost();
  void holder_says_good_bye() { holder_has_left_ = true; }

  struct Found {
    std::vector<int> ranks;  ///< silent for too long, ascending
    bool store = false;      ///< has not answered for too long: nothing is known of the ranks then
  };
  /// Call it often: what passes between two calls that are far apart does not count, since this process was stopped
  /// itself.
  Found look(Deadline now);

 private:
  struct Watched {
    int rank = 0;
    std::int64_t beat = 0;
    Deadline changed;
  };
  bool too_long(Deadline since, Deadline now) const { return now - since >= patience_; }

  static constexpr auto longest_between_looks = std::chrono::milliseconds(200);
  std::vector<Watched> watched_;
  int holder_;
  bool holder_has_left_ = false;
  std::chrono::milliseconds patience_;
  Deadline asked_;
  bool waits_ = false;  // for an answer
  Deadline heard_;      // the last answer
  Deadline last_look_;
};

/// How long a rank of so many sleeps between two signs of life: 150 ms up to 64 ranks, then in proportion to their
/// number, so that whoever serves the store has no more than some 400 a second to answer.
std::chrono::milliseconds between_beats(int size);

}  // namespace tutti::comm
