#include "device/devices.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <string>

#include "tutti/core/error.h"

namespace tutti::devices {

std::optional<c10::DeviceType> accelerator_type() {
  return at::getAccelerator(/*checked=*/false);
}

int device_count(c10::DeviceType type) {
  return accelerator_type() == type ? at::accelerator::deviceCount() : 0;
}

c10::Device device_of_rank(c10::Device device, int local_rank, int count) {
  if (device.has_index() || count == 0 || !is_accelerator(device)) return device;
  return {device.type(), static_cast<c10::DeviceIndex>(local_rank % count)};
}

void require_available(c10::Device device) {
  if (!is_accelerator(device)) return;
  const int count = device_count(device.type());
  if (count > 0 && device.index() < count) return;
  throw UsageError("device " + device.str() + " is not available: LibTorch sees " + std::to_string(count) + " " +
                   c10::DeviceTypeName(device.type(), /*lower_case=*/true) + (count == 1 ? " device" : " devices"));
}

void empty_cache() {
  const auto type = accelerator_type();
  if (!type || device_count(*type) == 0) return;
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(*type));
  if (allocator != nullptr && allocator->initialized()) allocator->emptyCache();
}

CurrentDevice::CurrentDevice() {
  if (accelerator_type() && at::accelerator::deviceCount() > 0) index_ = at::accelerator::getDeviceIndex();
}

void CurrentDevice::make_current() const {
  if (index_ >= 0 && index_ != at::accelerator::getDeviceIndex()) at::accelerator::setDeviceIndex(index_);
}

}  // namespace tutti::devices
