#pragma once
// Autocast: inside the scope LibTorch runs matrix products, convolutions and attention in the lower precision, and
// operations that need range (softmax, losses, norms) in float32.
//
// Micikevicius et al., "Mixed Precision Training", ICLR 2018. https://docs.pytorch.org/docs/stable/amp.html
#include <c10/core/DeviceType.h>

#include <memory>

#include "tutti/amp/precision.h"

namespace tutti {

/// Enables autocast on this thread until it is destroyed. Scopes nest; an inner scope with Precision::no disables the
/// outer one. Run forward passes and the loss inside, backward outside.
class [[nodiscard]] AutocastScope {
 public:
  /// Changes nothing.
  AutocastScope();
  /// Enables autocast for `device`; Precision::no disables it. Throws UsageError if LibTorch has no autocast for
  /// `device`.
  AutocastScope(Precision precision, c10::DeviceType device);
  ~AutocastScope();
  AutocastScope(AutocastScope&& other) noexcept;
  AutocastScope& operator=(AutocastScope&&) = delete;

 private:
  struct PreviousState;
  std::unique_ptr<PreviousState> previous_state_;
};

}  // namespace tutti
