#pragma once
// What this thread is at, for whoever waits far below a call and has a word to say about it.
#include "comm/engine/operation.h"

namespace tutti::comm {

/// While one lives, its thread works on `operation`. Between a call and a wait for one message of it stand engines,
/// rounds and transports, which would all have to hand on what none of them uses.
class OperationHere {
 public:
  explicit OperationHere(const Operation& operation);
  ~OperationHere();
  OperationHere(const OperationHere&) = delete;
  OperationHere& operator=(const OperationHere&) = delete;

  /// Null where this thread is at none.
  static const Operation* now();

 private:
  const Operation* before_;
};

/// While one lives, a wait of its thread is not told: another rank tells of the same one.
class ToldElsewhere {
 public:
  explicit ToldElsewhere(bool is_so);
  ~ToldElsewhere();
  ToldElsewhere(const ToldElsewhere&) = delete;
  ToldElsewhere& operator=(const ToldElsewhere&) = delete;

  static bool now();

 private:
  bool before_;
};

}  // namespace tutti::comm
