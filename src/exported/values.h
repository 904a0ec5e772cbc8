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

/// Finds the slot of a name, and notes that it is read; throws CheckpointError for an unknown name.
using FindSlot = std::function<std::int32_t(const Argument& name)>;

/// An argument: a constant, or how to compute it in each run.
struct Compiled {
  c10::IValue constant{};
  std::optional<DynamicArgument> dynamic_argument{};
};
/// `holds_number`: true if a slot holds a number. Throws CheckpointError if the schema does not accept the argument.
Compiled compile_argument(const Argument& given, const c10::Argument& wanted, const FindSlot& find,
                          const std::function<bool(std::int32_t)>& holds_number);

/// A number as Python passes it in place of a tensor: it does not take part in type promotion.
at::Tensor wrapped_number(const c10::IValue& number);
/// An argument without a schema: of size operators, of branches, of the model.
Operand compile_item(const Argument& given, const FindSlot& find);

}  // namespace tutti::exported
