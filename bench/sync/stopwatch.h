#pragma once
// Times one training, in the same way for every system.
#include <functional>

#include "sync/parameters.h"
#include "sync/workload.h"
#include "tutti/comm/communicator.h"

namespace tutti::bench {

struct Measurement {
  double milliseconds_per_batch = 0;
  Parameters after_warm_up;
  Parameters after_epoch;
};

/// Runs `warm_up`, then `timed`, a training on `batches` batches that is timed from barrier to barrier.
Measurement measure(Communicator communicator, const Parameters& parameters, std::size_t batches,
                    const std::function<void()>& warm_up, const std::function<void()>& timed);

class Stopwatch {
 public:
  /// `communicator` synchronizes the ranks before and after a measurement, and is not used during it.
  Stopwatch(const Workload& workload, Communicator communicator);

  /// Runs `train` over the warm-up, then over the epoch, which is timed from barrier to barrier.
  Measurement measure(const Parameters& parameters, const std::function<void(const Epoch&)>& train) const;

 private:
  const Workload& workload_;
  Communicator communicator_;
};

}  // namespace tutti::bench
