#pragma once
// What this thread is at, for whoever waits far below a call and has a word to say about it.
#include "comm/backend/operation.h"

namespace tutti::comm {

/// While one lives, its thread works on `operation`. Between a call and a wait for one message of it stand backends,
/// rounds and transports, which would all have to hand on what none of them uses.
class CurrentOperation {
 public:
  explicit CurrentOperation(const Operation& operation);
  ~CurrentOperation();
  CurrentOperation(const CurrentOperation&) = delete;
  CurrentOperation& operator=(const CurrentOperation&) = delete;

  /// Null where this thread is at none.
  static const Operation* get();

 private:
  const Operation* previous_;
};

/// While one lives, a wait of its thread is not told: another rank tells of the same one.
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
