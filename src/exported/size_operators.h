#pragma once
// Python's operators on sizes: what torch.export writes for arithmetic between symbolic sizes.
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

/// By the name in a program ("_operator.mul", "torch.sym_max"); nullopt for others.
std::optional<SizeOperator> size_operator(const std::string& target);
/// How many numbers it takes.
std::size_t size_operator_arity(SizeOperator op);
/// Of integers, floats and booleans, as Python computes it. Throws UsageError for a division by zero and a number that
/// does not fit.
c10::IValue apply_size_operator(SizeOperator op, std::span<const c10::IValue> numbers);

}  // namespace tutti::exported
