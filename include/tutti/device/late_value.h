#pragma once
// A number that a device computes and the host reads later.
#include <iosfwd>
#include <memory>

namespace at {
class Tensor;
}

namespace tutti {

/// A double that may still be under way from a device. Converting it to double waits for the device, in the first call
/// only. A small value: copies share the number. Thread safe.
class LateValue {
 public:
  LateValue(double value = 0) : value_(value) {}  // NOLINT(google-explicit-constructor): works as a double
  /// The one element of `tensor`. On an accelerator the copy to the host is queued on the calling thread's current
  /// stream, and the call does not wait.
  explicit LateValue(const at::Tensor& tensor);

  /// The number. Waits for the device.
  operator double() const;  // NOLINT(google-explicit-constructor): works as a double
  /// True if the conversion will not wait.
  bool is_ready() const;

 private:
  struct Copy;
  double value_ = 0;
  std::shared_ptr<Copy> copy_;  // null if value_ is the number
};

std::ostream& operator<<(std::ostream& out, const LateValue& value);

}  // namespace tutti
