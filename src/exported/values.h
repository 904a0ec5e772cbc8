#pragma once
// Arguments of a program as LibTorch's values, by what an operator's schema asks for.
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

/// The schema's numbers as LibTorch's. Throw CheckpointError for others.
c10::ScalarType scalar_type_of(std::int64_t number);
std::int64_t layout_of(std::int64_t number);
std::int64_t memory_format_of(std::int64_t number);
c10::Device device_of(const Device& device);

/// Finds the slot of a name, and notes that it is read; throws CheckpointError for a name that nobody has made.
using FindSlot = std::function<std::int32_t(const Argument& name)>;

/// An argument: a constant, or how to make it in each run.
struct Compiled {
  c10::IValue constant{};
  std::optional<DynamicArgument> dynamic_argument{};
};
/// `of_size` tells whether a slot holds a number. Throws CheckpointError for what the schema does not take.
Compiled compile_argument(const Argument& given, const c10::Argument& wanted, const FindSlot& find,
                          const std::function<bool(std::int32_t)>& holds_number);

/// A number as Python passes it where an operator wants a tensor: it does not decide the result's dtype.
at::Tensor wrapped_number(const c10::IValue& number);
/// An argument without a schema: of operators on sizes, of branches, of the model itself.
Operand compile_item(const Argument& given, const FindSlot& find);

}  // namespace tutti::exported
