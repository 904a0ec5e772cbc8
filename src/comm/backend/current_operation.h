#pragma once
// The operation that the calling thread runs, for warnings of a wait that is several layers below the call.
#include "comm/backend/operation.h"

namespace tutti::comm {

/// Sets the thread's current operation for the object's lifetime. Thread-local, because the backends, algorithms and
/// transports between a call and its waits do not use the operation and would only pass it on.
class CurrentOperation {
 public:
  explicit CurrentOperation(const Operation& operation);
  ~CurrentOperation();
  CurrentOperation(const CurrentOperation&) = delete;
  CurrentOperation& operator=(const CurrentOperation&) = delete;

  /// The calling thread's operation; null if it runs none.
  static const Operation* get();

 private:
  const Operation* previous_;
};

/// Suppresses the slow-operation warnings of its thread for the object's lifetime: another rank warns about the same
/// wait.
class SuppressSlowWarning {
 public:
  explicit SuppressSlowWarning(bool active);
  ~SuppressSlowWarning();
  SuppressSlowWarning(const SuppressSlowWarning&) = delete;
  SuppressSlowWarning& operator=(const SuppressSlowWarning&) = delete;

  static bool is_active();

 private:
  bool previous_;
};

}  // namespace tutti::comm
