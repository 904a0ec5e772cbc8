#pragma once
// The device of a rank.
#include <c10/core/Device.h>

#include <optional>

#include "tutti/comm/communicator.h"
#include "tutti/core/environment.h"

namespace tutti {

/// Returns `wanted`, with the local rank as the device number for CUDA without a number.
at::Device device_of_rank(at::Device wanted, int local_rank);

/// Makes a CUDA device the current device of the calling thread, as programs that use kCUDA without a number expect.
/// Throws UsageError if the device does not exist.
void use_device(at::Device device);

/// Returns `asked`. If its backend is "auto", sets the backend that reduces on `device`.
CommunicatorOptions communication_for(std::optional<at::Device> device, CommunicatorOptions asked,
                                      const VariableLookup& lookup);

}  // namespace tutti
