#pragma once
// Python's arithmetic on sizes, in 64 bits. The functions throw UsageError if a result does not exist or does not fit.
#include <cstdint>
#include <string>

namespace tutti::exported::checked_math {

/// Throws UsageError.
[[noreturn]] void no_size(const std::string& why);

std::int64_t add(std::int64_t a, std::int64_t b);
std::int64_t subtract(std::int64_t a, std::int64_t b);
std::int64_t multiply(std::int64_t a, std::int64_t b);
/// Rounds down, like Python's //.
std::int64_t floor_divide(std::int64_t a, std::int64_t b);
/// Returns a remainder with the sign of b, like Python's %.
std::int64_t modulo(std::int64_t a, std::int64_t b);
/// Throws UsageError also if `exponent` is negative.
std::int64_t power(std::int64_t base, std::int64_t exponent);
std::int64_t power_of_two(std::int64_t exponent);

}  // namespace tutti::exported::checked_math
