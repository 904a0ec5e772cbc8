#pragma once
// Reuses the receive buffers of earlier operations: the page faults of new memory cost more than the reduction.
#include <mutex>
#include <vector>

#include "comm/transport/transport.h"

namespace tutti::comm {

/// Thread safe.
class BufferPool {
 public:
  /// Returns a buffer of `bytes`, 64-byte aligned. Its memory returns to the pool when the last Buffer that shares its
  /// owner is destroyed.
  Buffer acquire(std::size_t bytes);

 private:
  struct Allocation;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Allocation>> allocations_;
};

}  // namespace tutti::comm
