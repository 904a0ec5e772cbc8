#include "tutti/detail/amp/autocast.h"

#include <ATen/autocast_mode.h>
#include <c10/core/ScalarType.h>

#include <string>

#include "tutti/core/error.h"

namespace tutti {

/// The settings of this thread before the scope.
struct AutocastScope::PreviousState {
  c10::DeviceType device;
  bool enabled;
  at::ScalarType dtype;
};

AutocastScope::AutocastScope(Precision precision, c10::DeviceType device) {
  if (!at::autocast::is_autocast_available(device)) {
    throw UsageError("autocast: LibTorch has no autocast for device " + c10::DeviceTypeName(device, true));
  }
  previous_state_ = std::make_unique<PreviousState>(
      PreviousState{device, at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)});
  at::autocast::increment_nesting();
  at::autocast::set_autocast_enabled(device, precision != Precision::no);
  if (precision != Precision::no) {
    at::autocast::set_autocast_dtype(device, precision == Precision::fp16 ? at::kHalf : at::kBFloat16);
  }
}

AutocastScope::AutocastScope() = default;
AutocastScope::AutocastScope(AutocastScope&& other) noexcept = default;

AutocastScope::~AutocastScope() {
  if (!previous_state_) return;
  // Cast weights stay cached until the outermost scope ends; an optimizer step would make them stale.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(previous_state_->device, previous_state_->enabled);
  at::autocast::set_autocast_dtype(previous_state_->device, previous_state_->dtype);
}

}  // namespace tutti
