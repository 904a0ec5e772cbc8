#include "tutti/detail/data/prefetcher.h"

#include "device/devices.h"

namespace tutti::detail {

std::function<void()> current_device_of_this_thread() {
  return [device = devices::CurrentDevice()] { device.make_current(); };
}

}  // namespace tutti::detail
