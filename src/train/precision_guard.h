#pragma once
// Detects backward passes that use mixed precision incompletely.
#include "tutti/amp/precision.h"

namespace tutti {

/// Every reducer calls check() when a backward pass begins. Only one backward pass may run at a time.
class PrecisionGuard {
 public:
  explicit PrecisionGuard(Precision precision) : precision_(precision) {}

  /// Records that an autocast scope was opened.
  void autocast_opened() { autocast_opened_ = true; }
  /// Marks the backward pass of a scaled loss until destruction.
  class ScaledBackward {
   public:
    explicit ScaledBackward(PrecisionGuard& guard) : guard_(guard) { guard_.in_scaled_backward_ = true; }
    ~ScaledBackward() { guard_.in_scaled_backward_ = false; }
    ScaledBackward(const ScaledBackward&) = delete;
    ScaledBackward& operator=(const ScaledBackward&) = delete;

   private:
    PrecisionGuard& guard_;
  };

  /// Must be called on a thread that runs a backward pass. Throws UsageError for an unscaled loss under fp16. Throws it
  /// for a graph made without autocast: it has an operator that autocast computes in the lower precision, but no cast,
  /// and no autocast scope was opened since the last backward pass. Throws it also for an unscaled loss of a filler
  /// batch (see join_uneven_inputs()).
  void check(bool weighs_nothing = false);

 private:
  Precision precision_;
  bool autocast_opened_ = false;
  bool in_scaled_backward_ = false;
  int checked_task_ = -1;
};

}  // namespace tutti
