#pragma once
// The limit of open file descriptors of this process.
#include <cstdint>
#include <string>

namespace tutti {

/// The number of open descriptors; 0 if the system does not tell.
std::uint64_t count_open_descriptors();

/// Raises the limit (`ulimit -Sn`) to `wanted` if it is lower, but not above the hard limit (`ulimit -Hn`). Returns the
/// limit. Child processes inherit it.
std::uint64_t raise_descriptor_limit(std::uint64_t wanted);

/// The same. Throws UsageError, which names `subject`, if the limit is then below `needed`.
void require_descriptors(const std::string& subject, std::uint64_t needed, std::uint64_t wanted);

}  // namespace tutti
