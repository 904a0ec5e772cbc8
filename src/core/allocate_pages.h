#pragma once
// Allocates the memory of a file before it is mapped: a full disk is then an error instead of SIGBUS at an access.
#include <cstddef>

namespace tutti {

/// Allocates the pages of `bytes` bytes of a file or memfd from `begin`, also while signals arrive. Returns 0 or the
/// error: EFBIG where the process's limit of file sizes is lower, at which the system would end the process.
int allocate_pages(int descriptor, std::size_t begin, std::size_t bytes);

}  // namespace tutti
