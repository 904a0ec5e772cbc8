#pragma once
// Python's arithmetic on sizes in 64 bits. All throw UsageError where a result does not fit, or there is none.
#include <cstdint>

namespace tutti::exported::checked_math {

std::int64_t add(std::int64_t a, std::int64_t b);
std::int64_t subtract(std::int64_t a, std::int64_t b);
std::int64_t multiply(std::int64_t a, std::int64_t b);
/// Rounds down, as Python's //.
std::int64_t floor_divide(std::int64_t a, std::int64_t b);
/// Has the sign of b, as Python's %.
std::int64_t modulo(std::int64_t a, std::int64_t b);
/// `exponent` is not negative.
std::int64_t power(std::int64_t base, std::int64_t exponent);
std::int64_t power_of_two(std::int64_t exponent);

}  // namespace tutti::exported::checked_math
