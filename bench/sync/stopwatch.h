#pragma once
// Times one training, in the same way for every system.
#include <functional>

#include "sync/parameters.h"
#include "tutti/comm/communicator.h"

namespace tutti::bench {

struct Measurement {
  double milliseconds_per_batch = 0;
  Parameters after_warm_up;
  Parameters after_epoch;
};

/// Runs `warm_up`, then `timed`, a training on `batches` batches that is timed from barrier to barrier. `communicator`
/// is not used during a training.
Measurement measure(Communicator communicator, const Parameters& parameters, std::size_t batches,
                    const std::function<void()>& warm_up, const std::function<void()>& timed);

}  // namespace tutti::bench
