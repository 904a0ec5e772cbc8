#pragma once
// A simulated device whose kernels take long, so that work that does not wait for them reads too early.
#include <functional>

#include "support/simulated_device/simulated_device.h"
#include "tutti/comm/communicator.h"

namespace tutti::test {

/// Makes the kernels that are launched while the object exists take `microseconds` longer.
class SlowKernels {
 public:
  explicit SlowKernels(int microseconds) { simulated::settings().microseconds_per_kernel = microseconds; }
  ~SlowKernels() { simulated::settings().microseconds_per_kernel = 0; }
  SlowKernels(const SlowKernels&) = delete;
  SlowKernels& operator=(const SlowKernels&) = delete;
};

/// Runs `work` on all ranks at once, and returns how often the hosts of all ranks waited for a device meanwhile.
inline std::int64_t waits_during(const Communicator& communicator, const std::function<void()>& work) {
  communicator.barrier().wait();
  if (communicator.rank() == 0) simulated::reset_counts();
  communicator.barrier().wait();
  work();
  communicator.barrier().wait();
  const std::int64_t waits = simulated::counts().all_waits();
  communicator.barrier().wait();
  return waits;
}

}  // namespace tutti::test
