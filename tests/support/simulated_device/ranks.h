#pragma once
// Ranks as threads, each with a simulated device of its own.
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "support/simulated_device/c10d_backend.h"
#include "support/simulated_device/simulated_device.h"
#include "tutti/comm/thread_ranks.h"

namespace tutti::test {

struct SimulatedRanks {
  int size = 2;
  int num_nodes = 1;
  int first_device = 0;          ///< of rank 0
  std::string backend = "auto";  ///< see CommunicatorOptions
  bool c10d_backend = true;      ///< sums on devices use the simulated NCCL
  std::chrono::milliseconds timeout = std::chrono::seconds(20);
};

/// The factory of the simulated NCCL, for one job.
inline C10dBackendFactory simulated_nccl() {
  const auto groups = std::make_shared<simulated::SharedGroups>();
  return {.name = "simulated nccl",
          .device = simulated::type,
          .make = [groups](const std::string& group, int rank, int size, c10::Device on) {
            return c10::intrusive_ptr<c10d::Backend>(
                c10::make_intrusive<simulated::Backend>(groups->of(group, size), rank, size, on.index()));
          }};
}

/// Runs `body` once per rank, with the rank's device as the current one. Call simulated::register_device() before.
inline void run_simulated_ranks(const SimulatedRanks& ranks,
                                const std::function<void(const Communicator&, at::Device)>& body) {
  CommunicatorOptions options{.backend = ranks.backend, .timeout = ranks.timeout};
  if (ranks.c10d_backend) options.device_backend = simulated_nccl();
  run_thread_ranks(
      ranks.size,
      [&](const Communicator& communicator) {
        const int device = ranks.first_device + communicator.rank();
        simulated::set_current_device(device);
        body(communicator, at::Device(simulated::type, static_cast<at::DeviceIndex>(device)));
      },
      options, ranks.num_nodes);
}

}  // namespace tutti::test
