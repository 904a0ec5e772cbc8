#pragma once
// The devices of this process beside the CPU: CUDA, XPU, MPS or a device of PrivateUse1. LibTorch supports one type of
// accelerator in a process.
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace tutti::devices {

/// The type of accelerator that LibTorch supports in this process; nullopt without one.
std::optional<c10::DeviceType> accelerator_type();
/// The number of devices of `type` that this process can use. Does not create a context.
int device_count(c10::DeviceType type);
/// True if tensors on `device` have memory that the host cannot read directly.
inline bool is_accelerator(c10::Device device) {
  return !device.is_cpu() && !device.is_meta();
}
/// The widest floating-point type that every LibTorch build computes in on `device`: MPS has no double.
inline at::ScalarType widest_float(c10::Device device) {
  return device.is_mps() ? at::kFloat : at::kDouble;
}
/// `device` with a number. Without one, the number is the local rank modulo `count`, the number of devices of its type:
/// every rank may see all devices of its node, or only its own. Unchanged if there is no such device.
c10::Device device_of_rank(c10::Device device, int local_rank, int count);
inline c10::Device device_of_rank(c10::Device device, int local_rank) {
  return device_of_rank(device, local_rank, device_count(device.type()));
}
/// Throws UsageError, which names the device and the number of devices, if `device` is an accelerator that this process
/// does not have.
void require_available(c10::Device device);

/// Returns the free memory that LibTorch's allocator of this process's accelerator keeps, to the device. Does nothing
/// without an accelerator, and for an allocator that keeps no memory.
void empty_cache();

/// The device that is current on the thread that created the object. A thread of the library makes it current before it
/// works for that thread: otherwise it would use device 0, and with CUDA create a context there.
class CurrentDevice {
 public:
  CurrentDevice();
  /// Stands for `device` instead.
  explicit CurrentDevice(c10::Device device) : index_(is_accelerator(device) ? device.index() : -1) {}
  /// Makes the device current on the calling thread. Does nothing without an accelerator.
  void make_current() const;

 private:
  c10::DeviceIndex index_ = -1;
};

}  // namespace tutti::devices
