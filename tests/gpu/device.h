#pragma once
// The device that test_gpu tests: a CUDA device in a build with CUDA, else the simulated device. Ranks share the
// device, as they do on a machine with one GPU.
#include <c10/core/Device.h>

#include <functional>
#include <optional>
#include <string>

#include "tutti/comm/c10d_backend_factory.h"

namespace tutti::test::gpu {

/// The device of every rank. The first call registers the simulated device. Throws UsageError without a device.
c10::Device device();

/// The simulated device is slow, so cases do less work on it.
bool is_simulated();

/// Blocks until the device has completed all queued work.
void wait_for_device();

/// Queues work for the device's current stream that takes 0.1 s or more, so that the host runs ahead of the device.
void keep_device_busy();

/// Runs `work`. The test fails if the host waits for the device in it. On CUDA, PyTorch's sync debug mode finds copies
/// to the host and waits for a stream, but no waits for an event.
void expect_no_host_waits(const std::function<void()>& work);

/// A factory of NCCL that does not refuse ranks which share a device; NCCL itself may. `path` names a file that all
/// ranks of the job share and that does not exist before. nullopt without NCCL.
std::optional<C10dBackendFactory> nccl_on_one_device(const std::string& path);

}  // namespace tutti::test::gpu
