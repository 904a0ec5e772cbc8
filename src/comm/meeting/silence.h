#pragma once
// Which ranks have not been heard of for long. Pure.
//
// Every rank raises a number at the store while it lives, and reads those of others. A number that stands still means
// that its rank's process or machine does; a store that does not answer, that its holder's machine does. Neither says
// anything of a rank that is merely slow: a thread that does not train raises the number.
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

  /// The store has ended, without an answer. Returns whether its holder had left before, so that nobody minds.
  bool lost();

  /// Those that have been silent for too long, ascending. Call it often: what passes between two calls that are far
  /// apart does not count, since this process was stopped itself.
  std::vector<int> silent(Deadline now);

  /// Whether one of the ranks has said good-bye.
  bool has_said_good_bye(int rank) const;

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
  std::chrono::milliseconds patience_;
  Deadline asked_;
  bool waits_ = false;  // for an answer
  Deadline heard_;      // the last answer
  Deadline last_look_;
};

/// How long a rank of so many sleeps between two signs of life: 150 ms up to 64 ranks, then in proportion to their
/// number, so that whoever serves the store has no more than some 400 a second to answer.
std::chrono::milliseconds between_beats(int size);

/// The rank after `rank` on its own node, whose processes it sees; -1 where it is alone there.
int next_on_node(int rank, const std::vector<int>& node_of_rank);

/// Whom `rank` watches: of each other node the rank in the same place, or its first one where it has fewer ranks; and
/// on its own node the next one, with whom it exchanges messages too. Nobody where there is one node.
std::vector<int> watched_by(int rank, const std::vector<int>& node_of_rank);

}  // namespace tutti::comm
