#include "sync/step_options.h"

#include <array>
#include <bit>
#include <cstdio>

#include "sync/sampled_hash.h"

namespace tutti::sync {

namespace {

/// Rates are computed with functions whose last bits differ between C libraries. 0 is added because -0 has other bits.
float rounded(double value) {
  return static_cast<float>(value) + 0.0F;
}

}  // namespace

std::uint64_t hash_of(const StepOptions& options) {
  std::uint64_t hash = 0;
  options([&hash](const char*, std::int64_t group, double value) {
    const std::array<std::uint64_t, 3> values{hash, static_cast<std::uint64_t>(group),
                                              std::bit_cast<std::uint32_t>(rounded(value))};
    hash = combine(values);
  });
  return hash;
}

std::string describe(const StepOptions& options) {
  std::string text;
  options([&text](const char* name, std::int64_t group, double value) {
    std::array<char, 32> number{};
    std::snprintf(number.data(), number.size(), "%.7g", value);
    text += std::string(name) + ' ' + number.data();
    if (group >= 0) text += " in parameter group " + std::to_string(group);
    text += '\n';
  });
  return text;
}

}  // namespace tutti::sync
