#include "exported/checked_math.h"

#include "tutti/core/error.h"

namespace tutti::exported::checked_math {

void no_size(const std::string& why) {
  throw UsageError("a size of the exported program cannot be computed: " + why);
}

namespace {

[[noreturn]] void too_large() {
  no_size("the result does not fit into 64 bits");
}

}  // namespace

std::int64_t add(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) too_large();
  return result;
}

std::int64_t subtract(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (__builtin_sub_overflow(a, b, &result)) too_large();
  return result;
}

std::int64_t multiply(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) too_large();
  return result;
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  if (b == 0) no_size("a division by zero");
  if (b == -1) return subtract(0, a);
  const std::int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

std::int64_t modulo(std::int64_t a, std::int64_t b) {
  if (b == 0) no_size("a division by zero");
  if (b == -1) return 0;
  const std::int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

std::int64_t power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) no_size("a negative exponent");
  // The results of these bases fit for every exponent.
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  if (exponent > 63) too_large();
  std::int64_t result = 1;
  for (; exponent > 0; --exponent) result = multiply(result, base);
  return result;
}

std::int64_t power_of_two(std::int64_t exponent) {
  if (exponent < 0 || exponent > 62) no_size("a shift by " + std::to_string(exponent));
  return std::int64_t{1} << exponent;
}

}  // namespace tutti::exported::checked_math
