#pragma once
// The device of a rank.
#include <c10/core/Device.h>

#include <optional>

#include "tutti/comm/communicator.h"
#include "tutti/core/environment.h"

namespace tutti {

/// Makes an accelerator the current device of the calling thread, as programs that use a device type without a number
/// expect. Throws UsageError if the device does not exist.
void use_device(at::Device device);

/// Returns `asked` for tensors on `device`. If the backend is free to choose and training is `reproducible`, sets the
/// backend that sums on devices in a fixed order.
CommunicatorOptions communication_for(std::optional<at::Device> device, bool reproducible, CommunicatorOptions asked,
                                      const VariableLookup& lookup);

}  // namespace tutti
