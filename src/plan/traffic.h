#pragma once
// The messages of an all-reduce: how many each rank sends, and how large. No I/O.
#include "plan/description.h"

namespace tutti::plan {

/// The algorithm of a sum between nodes.
enum class Schedule {
  direct,   ///< each member sends every other member a slice to add, and later the sum of its own slice
  halving,  ///< recursive halving, then doubling, with one partner at a time
};

/// The algorithm that tutti selects for a sum of `bytes` over `members`: is_recursive_halving_faster() in
/// src/comm/algorithms/recursive_halving_schedule.h.
Schedule schedule_for(int members, double bytes);

/// The time that the additions of recursive halving take beyond those of the direct algorithm for a sum of `bytes`, in
/// microseconds.
double halving_additions_us(double bytes);

struct Messages {
  int steps = 0;     ///< one after another
  int sent = 0;      ///< messages that each member sends
  double share = 0;  ///< fraction of the tensor that each member sends
};

/// The reduce-scatter of a sum over `members`. The all-gather takes the same messages again.
Messages messages_of(Schedule schedule, int members);

/// The number of rounds of a small all-gather over `members`.
int exchange_steps(int members);

/// The backend that sums gradients.
enum class BackendChoice {
  none,           ///< one rank
  shared_memory,  ///< one node
  messages,       ///< messages between ranks
  hierarchical,   ///< shared memory inside nodes; between nodes each rank sends its slice
};

/// The backend that tutti selects by default.
BackendChoice backend_for(const Layout& layout);

}  // namespace tutti::plan
