#pragma once
// Which rank of a crew (crew.h) gives the next sign of life for all of them, and when. Pure.
#include "comm/engine/transfer.h"

namespace tutti::comm {

struct LastBeat {
  int rank = -1;  ///< of the job; -1 where there has been none yet
  Deadline at{};
};

/// When a rank is to give a sign of life, if none comes before. Whoever `leads`, since it gave the last one or the rank
/// that did so has gone, gives the next; the others can sleep, and come in where it is overdue, for that process may
/// have been stopped.
inline Deadline next_beat(const LastBeat& last, bool leads, Clock::duration between) {
  return last.at + (leads ? between : between + between / 2);
}

}  // namespace tutti::comm
