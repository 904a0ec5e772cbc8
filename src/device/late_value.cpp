#include "tutti/device/late_value.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>

#include <mutex>
#include <optional>
#include <ostream>
#include <utility>

#include "device/devices.h"
#include "device/host_copy.h"
#include "device/side_stream.h"

namespace tutti {

struct LateValue::Copy {
  Copy(at::Tensor number_on_host, c10::Device device)
      : number(std::move(number_on_host)), arrived(devices::StreamEvent::on_current_stream(device)) {}

  at::Tensor number;  // pinned memory
  devices::StreamEvent arrived;
  std::mutex mutex;
  std::optional<double> value;

  double get() {
    const std::lock_guard lock(mutex);
    if (!value) {
      arrived.wait();
      value = number.item<double>();
    }
    return *value;
  }
};

LateValue::LateValue(const at::Tensor& tensor) {
  if (!devices::is_accelerator(tensor.device())) {
    value_ = tensor.item<double>();
    return;
  }
  const at::Tensor number = devices::pinned_like(tensor);
  number.copy_(tensor.detach(), /*non_blocking=*/true);
  copy_ = std::make_shared<Copy>(number, tensor.device());
}

LateValue::operator double() const {
  return copy_ ? copy_->get() : value_;
}

bool LateValue::is_ready() const {
  return !copy_ || copy_->arrived.is_reached();
}

std::ostream& operator<<(std::ostream& out, const LateValue& value) {
  return out << static_cast<double>(value);
}

}  // namespace tutti
