#include "comm/shared/stopped.h"

#include <algorithm>
#include <utility>

namespace tutti::comm {

Clock::duration StoppedClock::look(Deadline now, bool stopped) {
  const auto passed = std::min<Clock::duration>(now - std::exchange(last_, now), 2 * between_looks);
  stopped_ = stopped ? stopped_ + passed : Clock::duration::zero();
  return stopped_;
}

}  // namespace tutti::comm
