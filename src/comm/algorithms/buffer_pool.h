#pragma once
// Memory for incoming messages, kept for the next operation: fresh memory costs more in page faults than the sum does.
#include <mutex>
#include <vector>

#include "comm/transport/transport.h"

namespace tutti::comm {

/// Thread safe.
class BufferPool {
 public:
  /// At least `bytes`, 64-byte aligned. It comes back by itself when the last Buffer that shares its owner is gone.
  Buffer acquire(std::size_t bytes);

 private:
  struct Allocation;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Allocation>> allocations_;
};

}  // namespace tutti::comm
