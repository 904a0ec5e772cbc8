#pragma once
// A number that a device computes and the host reads later.
#include <functional>
#include <iosfwd>
#include <memory>
#include <utility>

namespace at {
class Tensor;
}

namespace tutti {

/// A double that may still be pending on a device. Converting it to double waits for the device, in the first call
/// only. It works wherever a double does, except for printf("%f"), deduced template arguments and `c ? late : 0.0`,
/// which need a static_cast<double>. A small value: copies share the number. Thread safe.
class LateValue {
 public:
  LateValue(double value = 0) : value_(value) {}  ///< A known number. NOLINT(google-explicit-constructor)
  /// The one element of `tensor`. On an accelerator the copy to the host is queued on the calling thread's current
  /// stream, and the call does not wait.
  explicit LateValue(const at::Tensor& tensor);
  /// The result of `function`, which the first conversion calls. If it throws, the conversion throws, and the next
  /// conversion calls it again.
  static LateValue deferred(std::function<double()> function);
  /// The result of `function` for this number. The call does not wait: if the number is late, so is the result.
  LateValue then(std::function<double(double)> function) const;

  /// The number. Waits for the device.
  operator double() const;  // NOLINT(google-explicit-constructor): works as a double
  /// True if the conversion will not wait. May differ between ranks.
  bool is_ready() const;
  /// True if the number was not known when the object was made. Does not change.
  bool is_late() const { return number_ != nullptr; }

 private:
  struct Number;
  explicit LateValue(std::shared_ptr<Number> number) : number_(std::move(number)) {}

  double value_ = 0;
  std::shared_ptr<Number> number_;  // null if value_ is the number
};

std::ostream& operator<<(std::ostream& out, const LateValue& value);  ///< Writes the number; waits for the device.

}  // namespace tutti
