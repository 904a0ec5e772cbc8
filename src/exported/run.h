#pragma once
// Runs a plan, operator by operator, under whatever autograd and autocast the caller has.
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <span>
#include <vector>

#include "exported/plan.h"

namespace tutti::exported {

/// What may differ from one run to the next.
struct RunState {
  std::span<const char> training{};               ///< by Step::module
  c10::Device export_device{c10::kCPU};           ///< where the model was when it was exported
  c10::Device device{c10::kCPU};                  ///< where it is now
  std::optional<c10::ScalarType> export_dtype{};  ///< of its floating point parameters; nullopt where they had several
  c10::ScalarType dtype = c10::kFloat;
};

/// The outputs for `inputs`, which must be as many as the plan has. Reentrant. What an operator throws names the node.
std::vector<c10::IValue> run(const Plan& plan, std::vector<c10::IValue> inputs, const RunState& state);

}  // namespace tutti::exported
