#pragma once
// When a rank that waits says so. Pure.
#include <chrono>

#include "comm/backend/transfer_error.h"

namespace tutti::comm {

/// After 10 s, then after a minute, then every 10 minutes.
class SlowOperationWarning {
 public:
  explicit SlowOperationWarning(Deadline begin) : begin_(begin) {}

  /// Whether a line is due; the next one then is later.
  bool due(Deadline now) {
    if (now - begin_ < next_) return false;
    next_ = next_ < std::chrono::minutes(1) ? std::chrono::minutes(1) : now - begin_ + std::chrono::minutes(10);
    return true;
  }
  std::chrono::seconds waited(Deadline now) const {
    return std::chrono::duration_cast<std::chrono::seconds>(now - begin_);
  }

 private:
  Deadline begin_;
  Clock::duration next_ = std::chrono::seconds(10);
};

}  // namespace tutti::comm
