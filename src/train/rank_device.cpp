#include "train/rank_device.h"

#include <utility>

#include "device/devices.h"

namespace tutti {

void use_device(at::Device device) {
  if (!devices::is_accelerator(device)) return;
  devices::require_available(device);
  devices::CurrentDevice(device).make_current();
}

CommunicatorOptions communication_for(std::optional<at::Device> device, bool reproducible, CommunicatorOptions asked,
                                      const VariableLookup& lookup) {
  if (!asked.device) asked.device = device;
  const bool on_accelerator = asked.device && devices::is_accelerator(*asked.device);
  const bool is_free = asked.backend == "auto" && !asked.device_backend && !lookup("TUTTI_BACKEND");
  if (reproducible && on_accelerator && is_free) asked.backend = "staged";
  return asked;
}

}  // namespace tutti
