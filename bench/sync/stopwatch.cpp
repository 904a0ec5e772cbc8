#include "sync/stopwatch.h"

#include <chrono>
#include <utility>

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

Stopwatch::Stopwatch(const Workload& workload, Communicator communicator)
    : workload_(workload), communicator_(std::move(communicator)) {}

Measurement Stopwatch::measure(const Parameters& parameters, const std::function<void(const Epoch&)>& train) const {
  return bench::measure(
      communicator_, parameters, workload_.timed().batches.size(), [&] { train(workload_.warm_up()); },
      [&] { train(workload_.timed()); });
}

}  // namespace tutti::bench
