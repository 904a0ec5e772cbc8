#pragma once
// Who sends how much to whom in a sum. Pure: numbers of nodes and ranks in, numbers of messages and shares of bytes
// out.
#include "plan/description.h"

namespace tutti::plan {

/// How a sum between nodes is made of messages.
enum class Schedule {
  direct,   ///< each sends every other one its version of that one's slice, and then its own slice's sum
  halving,  ///< recursive halving, then doubling: with one partner after the other
};

/// The one that tutti takes for a sum of so many bytes among so many members: is_recursive_halving_faster() of
/// src/comm/algorithms/recursive_halving_schedule.h.
Schedule schedule_for(int members, double bytes);

struct Messages {
  int steps = 0;     ///< one after the other
  int sent = 0;      ///< by each
  double share = 0;  ///< of the tensor's bytes that each sends
};

/// Half of a sum among `members`: until every slice is added up. Handing the sums out takes as much again.
Messages messages_of(Schedule schedule, int members);

/// Rounds of messages until each of `members` knows what all have to say.
int exchange_steps(int members);

/// What carries gradients.
enum class BackendChoice {
  none,           ///< one rank
  shared_memory,  ///< one node
  messages,       ///< from rank to rank
  hierarchical,   ///< shared memory inside nodes, and between them each rank its slice
};

/// The one that tutti takes where nothing else is asked for.
BackendChoice backend_for(const Layout& layout);

}  // namespace tutti::plan
