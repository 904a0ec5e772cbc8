#include "sync/step_options.h"

#include <array>
#include <bit>
#include <cstdio>

#include "sync/sampled_hash.h"

namespace tutti::sync {

std::uint64_t hash_of(const StepOptions& options) {
  std::uint64_t hash = 0;
  options([&hash](const char*, std::int64_t group, double value) {
    // 0 is added because 0 and -0 are equal and have other bits.
    const std::array<std::uint64_t, 3> values{hash, static_cast<std::uint64_t>(group),
                                              std::bit_cast<std::uint64_t>(value + 0.0)};
    hash = combine(values);
  });
  return hash;
}

std::string describe(const StepOptions& options) {
  std::string text;
  options([&text](const char* name, std::int64_t group, double value) {
    std::array<char, 32> number{};
    std::snprintf(number.data(), number.size(), "%.12g", value);
    text += std::string(name) + ' ' + number.data();
    if (group >= 0) text += " in parameter group " + std::to_string(group);
    text += '\n';
  });
  return text;
}

}  // namespace tutti::sync
