#pragma once
// Pinning of host memory that another allocator has made, such as memory that processes share.
#include <cstddef>
#include <memory>

namespace tutti::devices {

/// Pins `bytes` of host memory at `memory` as long as the result exists, so that copies between it and the accelerator
/// do not block the host. Returns null if the accelerator cannot pin memory of another allocator. The caller destroys
/// the result before it frees the memory, and after the last copy.
std::shared_ptr<void> pin_host_memory(void* memory, std::size_t bytes);

}  // namespace tutti::devices
