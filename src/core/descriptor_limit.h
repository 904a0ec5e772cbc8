#pragma once
// How many file descriptors this process may have.
#include <cstdint>

namespace tutti {

/// Those that are open.
std::uint64_t count_open_descriptors();

/// Raises the limit (`ulimit -Sn`) to `wanted` where it is lower, as far as the hard one (`ulimit -Hn`) lets it.
/// Returns the limit. Programs that this process starts inherit it.
std::uint64_t raise_descriptor_limit(std::uint64_t wanted);

}  // namespace tutti
