#include "tutti/device/late_value.h"

#include <ATen/core/TensorBody.h>

#include <mutex>
#include <optional>
#include <ostream>
#include <utility>

#include "device/devices.h"
#include "device/host_copy.h"
#include "device/side_stream.h"

namespace tutti {

struct LateValue::Number {
  Number(std::function<double()> function, std::function<bool()> is_here)
      : read(std::move(function)), has_arrived(std::move(is_here)) {}

  std::mutex mutex;
  std::function<double()> read;
  std::function<bool()> has_arrived;  // empty: only a call of read() brings the number
  std::optional<double> value;

  double get() {
    const std::lock_guard lock(mutex);
    if (!value) {
      value = read();
      read = nullptr;  // frees what it holds
      has_arrived = nullptr;
    }
    return *value;
  }
  bool is_ready() {
    const std::lock_guard lock(mutex);
    return value || (has_arrived && has_arrived());
  }
};

LateValue::LateValue(const at::Tensor& tensor) {
  if (!devices::is_accelerator(tensor.device())) {
    value_ = tensor.item<double>();
    return;
  }
  const at::Tensor number = devices::pinned_like(tensor);
  number.copy_(tensor.detach(), /*non_blocking=*/true);
  const auto arrival = std::make_shared<devices::StreamEvent>(devices::StreamEvent::on_current_stream(tensor.device()));
  const auto has_arrived = [arrival] { return arrival->is_reached(); };
  const auto read = [arrival, number] {
    // A program that reads the last of several values first waits once.
    if (!arrival->is_reached()) arrival->wait();
    return number.item<double>();
  };
  number_ = std::make_shared<Number>(read, has_arrived);
}

LateValue LateValue::deferred(std::function<double()> function) {
  return LateValue(std::make_shared<Number>(std::move(function), nullptr));
}

LateValue LateValue::then(std::function<double(double)> function) const {
  if (!number_) return function(value_);
  const auto read = [number = number_, function = std::move(function)] { return function(number->get()); };
  return LateValue(std::make_shared<Number>(read, [number = number_] { return number->is_ready(); }));
}

LateValue::operator double() const {
  return number_ ? number_->get() : value_;
}

bool LateValue::is_ready() const {
  return !number_ || number_->is_ready();
}

std::ostream& operator<<(std::ostream& out, const LateValue& value) {
  return out << static_cast<double>(value);
}

}  // namespace tutti
