#include "comm/shm/stopped_timer.h"

#include <algorithm>

namespace tutti::comm {

Clock::duration StoppedTimer::check(Deadline now, bool stopped) {
  const auto passed = std::min<Clock::duration>(now - last_check_.value_or(now), 2 * poll_interval);
  last_check_ = now;
  stopped_ = stopped ? stopped_ + passed : Clock::duration::zero();
  return stopped_;
}

}  // namespace tutti::comm
