#pragma once
// Memory for incoming messages, kept for the next operation: fresh memory costs more in page faults than the sum does.
#include <mutex>
#include <vector>

#include "comm/messages/transport.h"

namespace tutti::comm {

/// Thread safe.
class Scratch {
 public:
  /// At least `bytes`, 64-byte aligned. It comes back by itself when the last Block that shares its owner is gone.
  Block take(std::size_t bytes);

 private:
  struct Buffer;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Buffer>> buffers_;
};

}  // namespace tutti::comm
