#include "train/rank_device.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "tutti/data/to_device.h"

namespace tutti {

at::Device device_of_rank(at::Device wanted, int local_rank) {
  if (!wanted.is_cuda() || wanted.has_index()) return wanted;
  return {at::kCUDA, static_cast<at::DeviceIndex>(local_rank)};
}

void use_device(at::Device device) {
  if (!device.is_cuda()) return;
  const Placement exists(device);
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
}

CommunicatorOptions communication_for(std::optional<at::Device> device, CommunicatorOptions asked,
                                      const VariableLookup& lookup) {
  if (device && device->is_cuda() && asked.backend == "auto" && !lookup("TUTTI_BACKEND")) asked.backend = "nccl";
  return asked;
}

}  // namespace tutti
