// The value of an expression, and the names in it.
#include "exported/expression.h"

#include <algorithm>

#include "exported/checked_math.h"

namespace tutti::exported {

std::set<std::string> Expression::names() const {
  std::set<std::string> all;
  if (operation_ == Operation::name) all.insert(name_);
  for (const Expression& operand : operands_) all.merge(operand.names());
  return all;
}

std::optional<std::int64_t> Expression::evaluate(const Lookup& lookup) const {
  if (operation_ == Operation::number) return number_;
  if (operation_ == Operation::name) return lookup(name_);
  std::vector<std::int64_t> values;
  for (const Expression& operand : operands_) {
    const auto value = operand.evaluate(lookup);
    if (!value) return std::nullopt;
    values.push_back(*value);
  }
  const auto folded = [&values](auto combine) {
    std::int64_t result = values.front();
    for (std::size_t i = 1; i < values.size(); ++i) result = combine(result, values[i]);
    return result;
  };
  const std::int64_t a = values.front(), b = values.back();
  switch (operation_) {
    case Operation::add:
      return folded(checked_math::add);
    case Operation::multiply:
      return folded(checked_math::multiply);
    case Operation::divide:
      if (checked_math::modulo(a, b) != 0) return std::nullopt;  // inexact
      return checked_math::floor_divide(a, b);
    case Operation::floor_divide:
      return checked_math::floor_divide(a, b);
    case Operation::modulo:
      return checked_math::modulo(a, b);
    case Operation::power:
      return checked_math::power(a, b);
    case Operation::negate:
      return checked_math::subtract(0, a);
    case Operation::max:
      return *std::max_element(values.begin(), values.end());
    case Operation::min:
      return *std::min_element(values.begin(), values.end());
    case Operation::equal:
      return a == b ? 1 : 0;
    case Operation::unequal:
      return a != b ? 1 : 0;
    case Operation::less:
      return a < b ? 1 : 0;
    case Operation::less_equal:
      return a <= b ? 1 : 0;
    case Operation::greater:
      return a > b ? 1 : 0;
    case Operation::greater_equal:
      return a >= b ? 1 : 0;
    case Operation::logical_and:
      return std::all_of(values.begin(), values.end(), [](std::int64_t value) { return value != 0; }) ? 1 : 0;
    case Operation::logical_or:
      return std::any_of(values.begin(), values.end(), [](std::int64_t value) { return value != 0; }) ? 1 : 0;
    case Operation::logical_not:
      return a == 0 ? 1 : 0;
    case Operation::number:
    case Operation::name:
      break;
  }
  return std::nullopt;
}

}  // namespace tutti::exported
