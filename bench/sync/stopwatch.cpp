#include "sync/stopwatch.h"

#include <chrono>

namespace tutti::bench {

Measurement measure(Communicator communicator, const Parameters& parameters, std::size_t batches,
                    const std::function<void()>& warm_up, const std::function<void()>& timed) {
  using Clock = std::chrono::steady_clock;
  Measurement measurement;
  warm_up();
  measurement.after_warm_up = copy_of(parameters);

  communicator.barrier().wait();
  const auto start = Clock::now();
  timed();
  communicator.barrier().wait();
  const std::chrono::duration<double, std::milli> elapsed = Clock::now() - start;

  measurement.milliseconds_per_batch = elapsed.count() / static_cast<double>(batches);
  measurement.after_epoch = copy_of(parameters);
  return measurement;
}

}  // namespace tutti::bench
