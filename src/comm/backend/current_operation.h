#pragma once
// The operation that the calling thread runs, for warnings of a wait that is several layers below the call.
#include <utility>

#include "comm/backend/operation.h"

namespace tutti::comm {

/// Sets the thread's current operation for the object's lifetime. Thread-local, because the backends, algorithms and
/// transports between a call and its waits do not use the operation and would only pass it on.
class CurrentOperation {
 public:
  explicit CurrentOperation(const Operation& operation) : previous_(std::exchange(current_, &operation)) {}
  ~CurrentOperation() { current_ = previous_; }
  CurrentOperation(const CurrentOperation&) = delete;
  CurrentOperation& operator=(const CurrentOperation&) = delete;

  /// The calling thread's operation; null if it runs none.
  static const Operation* get() { return current_; }

 private:
  inline static thread_local const Operation* current_ = nullptr;

  const Operation* previous_;
};

/// Suppresses the slow-operation warnings of its thread for the object's lifetime: another rank warns about the same
/// wait.
class SuppressSlowWarning {
 public:
  explicit SuppressSlowWarning(bool active) : previous_(std::exchange(active_, active || active_)) {}
  ~SuppressSlowWarning() { active_ = previous_; }
  SuppressSlowWarning(const SuppressSlowWarning&) = delete;
  SuppressSlowWarning& operator=(const SuppressSlowWarning&) = delete;

  static bool is_active() { return active_; }

 private:
  inline static thread_local bool active_ = false;

  bool previous_;
};

}  // namespace tutti::comm
