#include "exported/size_operators.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "exported/checked_math.h"

namespace tutti::exported {
namespace {

using Op = SizeOperator;

std::int64_t to_integer(double number) {
  constexpr double bound = 9223372036854775808.0;
  if (!(number >= -bound && number < bound)) checked_math::no_size("the result does not fit into 64 bits");
  return static_cast<std::int64_t>(number);
}

// Computes operators that are equal for integers and floats; nullopt for other operators.
template <typename Number>
std::optional<c10::IValue> of_either(Op op, Number a, Number b) {
  switch (op) {
    case Op::pos:
      return a;
    case Op::eq:
      return a == b;
    case Op::ne:
      return a != b;
    case Op::lt:
      return a < b;
    case Op::le:
      return a <= b;
    case Op::gt:
      return a > b;
    case Op::ge:
      return a >= b;
    case Op::max:
      return std::max(a, b);
    case Op::min:
      return std::min(a, b);
    default:
      return std::nullopt;
  }
}

// Returns nullopt if the result for integers is a float.
std::optional<c10::IValue> of_integers(Op op, std::int64_t a, std::int64_t b) {
  switch (op) {
    case Op::add:
      return checked_math::add(a, b);
    case Op::sub:
      return checked_math::subtract(a, b);
    case Op::mul:
      return checked_math::multiply(a, b);
    case Op::floordiv:
      return checked_math::floor_divide(a, b);
    case Op::mod:
      return checked_math::modulo(a, b);
    case Op::pow:
      if (b < 0) return std::nullopt;
      return checked_math::power(a, b);
    case Op::neg:
      return checked_math::subtract(0, a);
    case Op::to_int:
    case Op::trunc:
      return a;
    case Op::bool_and:
      return a & b;
    case Op::bool_or:
      return a | b;
    case Op::shift_left:
      return checked_math::multiply(a, checked_math::power_of_two(b));
    case Op::shift_right:
      return checked_math::floor_divide(a, checked_math::power_of_two(b));
    default:
      return of_either(op, a, b);
  }
}

c10::IValue of_floats(Op op, double a, double b) {
  switch (op) {
    case Op::add:
      return a + b;
    case Op::sub:
      return a - b;
    case Op::mul:
      return a * b;
    case Op::truediv:
      if (b == 0) checked_math::no_size("a division by zero");
      return a / b;
    case Op::floordiv:
      if (b == 0) checked_math::no_size("a division by zero");
      return std::floor(a / b);
    case Op::mod:
      if (b == 0) checked_math::no_size("a division by zero");
      return a - b * std::floor(a / b);
    case Op::pow:
      return std::pow(a, b);
    case Op::neg:
      return -a;
    case Op::to_float:
      return a;
    case Op::to_int:
    case Op::trunc:
      return to_integer(std::trunc(a));
    case Op::sqrt:
      return std::sqrt(a);
    default:
      break;
  }
  if (auto result = of_either(op, a, b)) return std::move(*result);
  checked_math::no_size("an integer operator has a float as operand");
}

bool is_number(const c10::IValue& value) {
  return value.isInt() || value.isDouble() || value.isBool();
}

bool truth(const c10::IValue& value) {
  if (value.isBool()) return value.toBool();
  return value.isInt() ? value.toInt() != 0 : value.toDouble() != 0;
}

std::int64_t integer(const c10::IValue& value) {
  return value.isBool() ? static_cast<std::int64_t>(value.toBool()) : value.toInt();
}

double floating(const c10::IValue& value) {
  return value.isDouble() ? value.toDouble() : static_cast<double>(integer(value));
}

}  // namespace

std::optional<SizeOperator> size_operator(const std::string& target) {
  static const std::map<std::string, SizeOperator> operators = {{"_operator.add", Op::add},
                                                                {"_operator.sub", Op::sub},
                                                                {"_operator.mul", Op::mul},
                                                                {"_operator.floordiv", Op::floordiv},
                                                                {"_operator.truediv", Op::truediv},
                                                                {"_operator.mod", Op::mod},
                                                                {"_operator.pow", Op::pow},
                                                                {"_operator.neg", Op::neg},
                                                                {"_operator.pos", Op::pos},
                                                                {"_operator.eq", Op::eq},
                                                                {"_operator.ne", Op::ne},
                                                                {"_operator.lt", Op::lt},
                                                                {"_operator.le", Op::le},
                                                                {"_operator.gt", Op::gt},
                                                                {"_operator.ge", Op::ge},
                                                                {"_operator.and_", Op::bool_and},
                                                                {"_operator.or_", Op::bool_or},
                                                                {"_operator.lshift", Op::shift_left},
                                                                {"_operator.rshift", Op::shift_right},
                                                                {"torch.sym_not", Op::bool_not},
                                                                {"torch.sym_max", Op::max},
                                                                {"torch.sym_min", Op::min},
                                                                {"torch.sym_int", Op::to_int},
                                                                {"torch.sym_float", Op::to_float},
                                                                {"torch.sym_ite", Op::ite},
                                                                {"torch.sym_sqrt", Op::sqrt},
                                                                {"torch._sym_sqrt", Op::sqrt},
                                                                {"math.trunc", Op::trunc}};
  const auto found = operators.find(target);
  if (found == operators.end()) return std::nullopt;
  return found->second;
}

std::size_t size_operator_arity(SizeOperator op) {
  switch (op) {
    case Op::neg:
    case Op::pos:
    case Op::bool_not:
    case Op::to_int:
    case Op::to_float:
    case Op::sqrt:
    case Op::trunc:
      return 1;
    case Op::ite:
      return 3;
    default:
      return 2;
  }
}

c10::IValue apply_size_operator(SizeOperator op, std::span<const c10::IValue> numbers) {
  for (const c10::IValue& number : numbers) {
    if (!is_number(number)) checked_math::no_size("an operand is a " + number.tagKind() + ", not a number");
  }
  const c10::IValue &a = numbers.front(), &b = numbers.size() > 1 ? numbers[1] : a;
  if (op == Op::ite) return truth(a) ? b : numbers[2];
  if (op == Op::bool_not) return !truth(a);
  if ((op == Op::bool_and || op == Op::bool_or) && a.isBool() && b.isBool()) {
    return op == Op::bool_and ? a.toBool() && b.toBool() : a.toBool() || b.toBool();
  }
  if (!a.isDouble() && !b.isDouble()) {
    if (auto result = of_integers(op, integer(a), integer(b))) return std::move(*result);
  }
  return of_floats(op, floating(a), floating(b));
}

}  // namespace tutti::exported
