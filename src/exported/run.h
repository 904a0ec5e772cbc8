#pragma once
// Runs a plan, operator by operator, under the caller's autograd and autocast.
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <span>
#include <vector>

#include "exported/plan.h"

namespace tutti::exported {

/// The state of the module, which may differ between runs.
struct RunState {
  std::span<const char> training{};               ///< not 0 for a module in training mode; Step::module is the index
  c10::Device export_device{c10::kCPU};           ///< the model's device at export
  c10::Device device{c10::kCPU};                  ///< the model's device now
  std::optional<c10::ScalarType> export_dtype{};  ///< dtype of the floating-point parameters; nullopt if mixed
  c10::ScalarType dtype = c10::kFloat;
};

/// Returns the outputs. `inputs` has Plan::inputs values. Reentrant. Adds the node to a c10::Error that an operator
/// throws.
std::vector<c10::IValue> run(const Plan& plan, std::vector<c10::IValue> inputs, const RunState& state);

}  // namespace tutti::exported
