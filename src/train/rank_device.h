#pragma once
// Which device a rank computes on.
#include <c10/core/Device.h>

#include <optional>

#include "tutti/comm/communicator.h"
#include "tutti/core/environment.h"

namespace tutti {

/// `wanted`; for CUDA without a number the device of the rank's place on its node.
at::Device device_of_rank(at::Device wanted, int local_rank);

/// Makes a CUDA device the calling thread's current one, as programs expect that say kCUDA without a number. Throws
/// UsageError where it is not there.
void use_device(at::Device device);

/// `asked`, with the backend that sums on `device` where the backend is left open.
CommunicatorOptions communication_for(std::optional<at::Device> device, CommunicatorOptions asked,
                                      const VariableLookup& lookup);

}  // namespace tutti
