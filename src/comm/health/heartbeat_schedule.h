#pragma once
// Which of the local peers (local_peers.h) sends the next heartbeat for all of them, and when. No I/O.
#include "comm/backend/transfer_error.h"

namespace tutti::comm {

struct LastHeartbeat {
  int rank = -1;  ///< of the job; -1 where there has been none yet
  Deadline at{};
};

/// When a rank must send a heartbeat, unless another rank sends one before. The sender is the rank that sent the last
/// one, or any rank if that one has exited. The other ranks send if the heartbeat is overdue, because the sender's
/// process may be stopped.
inline Deadline next_heartbeat(const LastHeartbeat& last, bool is_sender, Clock::duration interval) {
  return last.at + (is_sender ? interval : interval + interval / 2);
}

}  // namespace tutti::comm
