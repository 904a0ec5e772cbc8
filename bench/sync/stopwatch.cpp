#include "sync/stopwatch.h"

#include <chrono>
#include <utility>

namespace tutti::bench {

Stopwatch::Stopwatch(const Workload& workload, Communicator communicator)
    : workload_(workload), communicator_(std::move(communicator)) {}

Measurement Stopwatch::measure(const Parameters& parameters, const std::function<void(const Epoch&)>& train) const {
  using Clock = std::chrono::steady_clock;
  Measurement measurement;
  train(workload_.warm_up());
  measurement.after_warm_up = copy_of(parameters);

  communicator_.barrier().wait();
  const auto start = Clock::now();
  train(workload_.timed());
  communicator_.barrier().wait();
  const std::chrono::duration<double, std::milli> elapsed = Clock::now() - start;

  measurement.milliseconds_per_batch = elapsed.count() / static_cast<double>(workload_.timed().batches.size());
  measurement.after_epoch = copy_of(parameters);
  return measurement;
}

}  // namespace tutti::bench
