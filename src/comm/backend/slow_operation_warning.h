#pragma once
// The times at which a waiting rank logs a warning. No I/O.
#include <chrono>

#include "comm/backend/transfer_error.h"

namespace tutti::comm {

/// Due after 10 s, after 1 min, and then every 10 min.
class SlowOperationWarning {
 public:
  explicit SlowOperationWarning(Deadline begin) : begin_(begin) {}

  /// Returns true if a warning is due, and schedules the next one.
  bool due(Deadline now) {
    if (now - begin_ < next_) return false;
    next_ = next_ < std::chrono::minutes(1) ? std::chrono::minutes(1) : now - begin_ + std::chrono::minutes(10);
    return true;
  }
  /// When the next warning is due.
  Deadline next() const { return begin_ + next_; }
  std::chrono::seconds waited(Deadline now) const {
    return std::chrono::duration_cast<std::chrono::seconds>(now - begin_);
  }

 private:
  Deadline begin_;
  Clock::duration next_ = std::chrono::seconds(10);
};

}  // namespace tutti::comm
