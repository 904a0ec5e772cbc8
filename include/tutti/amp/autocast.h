#pragma once
// Autocast: inside the scope LibTorch computes what profits from it (matrix products, convolutions, attention) in the
// lower precision, and what needs range (softmax, losses, norms) in float32.
//
// Micikevicius et al., "Mixed Precision Training", ICLR 2018. https://docs.pytorch.org/docs/stable/amp.html
#include <c10/core/DeviceType.h>

#include <memory>

#include "tutti/amp/precision.h"

namespace tutti {

/// Autocast for this thread, while the object lives. Scopes nest, and an inner one with Precision::no switches the
/// outer one off. Forward passes and the loss belong inside, backward outside.
class [[nodiscard]] AutocastScope {
 public:
  /// Changes nothing.
  AutocastScope();
  /// Switches it on for `device`; Precision::no switches it off. Throws UsageError where LibTorch has no autocast for
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
