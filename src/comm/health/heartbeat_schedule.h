#pragma once
// Which rank of a crew (local_peers.h) gives the next sign of life for all of them, and when. Pure.
#include "comm/backend/transfer_error.h"

namespace tutti::comm {

struct LastHeartbeat {
  int rank = -1;  ///< of the job; -1 where there has been none yet
  Deadline at{};
};

/// When a rank is to give a sign of life, if none comes before. Whoever `is_sender`, since it gave the last one or the
/// rank that did so has gone, gives the next; the others can sleep, and come in where it is overdue, for that process
/// may have been stopped.
inline Deadline next_heartbeat(const LastHeartbeat& last, bool is_sender, Clock::duration interval) {
  return last.at + (is_sender ? interval : interval + interval / 2);
}

}  // namespace tutti::comm
