#pragma once
// Converts arguments of a program to IValues, as the schema of the operator requires.
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "exported/plan.h"
#include "exported/program.h"

namespace tutti::exported {

/// Converts the enumerations of the export schema to LibTorch's. Throw CheckpointError for unknown numbers.
c10::ScalarType scalar_type_of(std::int64_t number);
std::int64_t layout_of(std::int64_t number);
std::int64_t memory_format_of(std::int64_t number);
c10::Device device_of(const Device& device);

/// Returns the slot of a name. Throws CheckpointError if the name is unknown.
using FindSlot = std::function<std::int32_t(const Argument& name)>;

/// A compiled argument: a constant, or the rule that computes it in each run.
struct Compiled {
  c10::IValue constant{};
  std::optional<DynamicArgument> dynamic_argument{};
};
/// `holds_number` returns true if a slot has a number. Throws CheckpointError if the schema does not accept the
/// argument.
Compiled compile_argument(const Argument& given, const c10::Argument& wanted, const FindSlot& find,
                          const std::function<bool(std::int32_t)>& holds_number);

/// Returns a number as a tensor that does not take part in type promotion, as Python passes numbers.
at::Tensor wrapped_number(const c10::IValue& number);
/// Compiles an argument without a schema: of a size operator, of a branch, of the model.
Operand compile_item(const Argument& given, const FindSlot& find);

}  // namespace tutti::exported
