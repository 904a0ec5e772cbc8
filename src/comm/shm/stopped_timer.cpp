#include "comm/shm/stopped_timer.h"

#include <algorithm>
#include <utility>

namespace tutti::comm {

Clock::duration StoppedTimer::check(Deadline now, bool stopped) {
  const auto passed = std::min<Clock::duration>(now - std::exchange(last_check_, now), 2 * poll_interval);
  stopped_ = stopped ? stopped_ + passed : Clock::duration::zero();
  return stopped_;
}

}  // namespace tutti::comm
