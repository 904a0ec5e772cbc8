#pragma once
// Python's operators on sizes, with which torch.export writes arithmetic between symbolic sizes.
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace tutti::exported {

enum class SizeOperator : std::uint8_t {
  add,
  sub,
  mul,
  floordiv,
  truediv,
  mod,
  pow,
  neg,
  pos,
  eq,
  ne,
  lt,
  le,
  gt,
  ge,
  bool_and,
  bool_or,
  shift_left,
  shift_right,
  bool_not,
  max,
  min,
  to_int,
  to_float,
  ite,
  sqrt,
  trunc,
};

/// Returns the operator with the name `target` ("_operator.mul", "torch.sym_max"); nullopt for other names.
std::optional<SizeOperator> size_operator(const std::string& target);
/// Returns the number of operands.
std::size_t size_operator_arity(SizeOperator op);
/// Computes the result for integers, floats and booleans as Python does. Throws UsageError if a divisor is zero or the
/// result does not fit into 64 bits.
c10::IValue apply_size_operator(SizeOperator op, std::span<const c10::IValue> numbers);

}  // namespace tutti::exported
