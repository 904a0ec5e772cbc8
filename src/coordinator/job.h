#pragma once
// What ranks and the coordinator tell one another about a job: values that messages carry. No I/O.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/clock.h"

namespace tutti::coordinator {

inline constexpr std::size_t max_value_bytes = std::size_t{64} << 20;

/// One rank, as it introduces itself. The coordinator refuses a member that contradicts the first one.
struct Member {
  int rank = 0;
  int world_size = 1;
  std::string node{};     ///< equal for the ranks of one machine: a machine that is cut is one event
  std::string version{};  ///< of the library and its wire format
  int restart = 0;        ///< the attempt of the launchers that the process belongs to
  std::string job{};      ///< its name, where the launcher gives it one; empty otherwise
};

struct JobTimeouts {
  Milliseconds heartbeat{0};
  Milliseconds deadlock{0};  ///< 0: a deadlock is only reported
};

enum class Cause : std::uint8_t {
  exited,       ///< the process has ended, also by a signal or exec
  stopped,      ///< its machine answers, its process does not
  unreachable,  ///< its machine does not answer
};

/// One event: a rank, or all ranks of a machine.
struct FailedRanks {
  std::vector<int> ranks;  ///< ascending
  Cause cause = Cause::exited;
  /// True if the ranks are only late (2 s without a heartbeat): to be logged. A later event acts, or none.
  bool is_warning = false;
};

/// All ranks are blocked and none can continue (flight::find_deadlock).
struct Deadlock {
  std::string text;
  /// False: all have been blocked for 2 s, to be logged. True: all agree, and every rank's calls must end.
  bool is_certain = false;
};

}  // namespace tutti::coordinator
