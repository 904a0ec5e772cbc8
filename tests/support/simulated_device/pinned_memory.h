#pragma once
// Pinned memory: CPU memory that copies of the simulated accelerator read and write while the host continues.
#include <c10/core/Allocator.h>

namespace tutti::test::simulated {

c10::Allocator& pinned_allocator();
/// True if `begin` is the first address of pinned memory.
bool is_pinned(const void* begin);

}  // namespace tutti::test::simulated
