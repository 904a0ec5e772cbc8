// What LibTorch asks of an accelerator beside its operators, and the registration of the device.
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cstring>

#include "support/simulated_device/generator.h"
#include "support/simulated_device/pinned_memory.h"
#include "support/simulated_device/simulated_device.h"

namespace tutti::test::simulated {
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return settings().devices > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(settings().devices); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(current_device()); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const int before = current_device();
    set_current_device(device);
    return static_cast<c10::DeviceIndex>(before);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device < 0 ? current_device() : device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return new_generator(device < 0 ? current_device() : device);
  }
  at::Device getDeviceFromPtr(void* data) const override {
    return {type, static_cast<c10::DeviceIndex>(device_of(data))};
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    const c10::DeviceGuard guard(storage.device());
    c10::DataPtr resized = c10::GetAllocator(type)->allocate(bytes);
    const std::size_t kept = std::min(bytes, storage.nbytes());
    if (kept > 0) {
      launch(current_stream(storage.device().index()),
             [to = as_seen_by_kernels(resized.get()), from = as_seen_by_kernels(storage.data()), kept] {
               std::memcpy(to, from, kept);
             });
    }
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(resized));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

}  // namespace

void register_device() {
  static const bool is_registered = [] {
    c10::register_privateuse1_backend("sim");
    static auto* const hooks = new Hooks;
    at::RegisterPrivateUse1HooksInterface(hooks);
    return true;
  }();
  (void)is_registered;
}

}  // namespace tutti::test::simulated
