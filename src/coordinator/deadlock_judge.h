#pragma once
// Judges whether the blocked calls of all ranks are a deadlock (flight/wait_graph.h). No I/O.
//
// A rank states its calls again when it agrees: it was blocked in them for the deadlock timeout, and no thread of its
// program has used CPU time. A statement holds until the rank takes it back, so when all ranks agree, all were blocked
// at the same time.
#include <optional>
#include <string>
#include <vector>

#include "coordinator/clock.h"
#include "coordinator/job.h"
#include "flight/wait_graph.h"

namespace tutti::coordinator {

class DeadlockJudge {
 public:
  static constexpr Milliseconds report_delay{2000};

  /// `deadlock_timeout`: 0 if a deadlock is only reported.
  DeadlockJudge(int world_size, Milliseconds deadlock_timeout);

  /// `since`: when the rank made its last call. Returns false if `wait_state` is no text of flight::WaitState.
  bool blocked(int rank, const std::string& wait_state, bool agrees, Time since);
  void unblocked(int rank);

  /// Call it after changes and from time to time. Returns each deadlock at most twice: as a report, and when certain.
  std::optional<Deadlock> judge(Time now);

 private:
  struct Statement {
    std::string text;
    flight::WaitState state;
    bool agrees = false;
    Time since{};
  };
  std::vector<std::optional<Statement>> statements_;  // by rank
  Milliseconds deadlock_timeout_;
  bool is_evaluated_ = false;
  bool is_reported_ = false;
  bool is_certain_ = false;
  std::optional<std::string> deadlock_;  // of the present statements
};

}  // namespace tutti::coordinator
