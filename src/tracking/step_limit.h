#pragma once
#include <cstdint>

namespace tutti {

/// The largest step in metrics files: as doubles, steps up to it are exact.
inline constexpr std::int64_t largest_step = std::int64_t{1} << 53;

}  // namespace tutti
