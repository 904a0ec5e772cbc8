#pragma once
// Tells backward passes of mixed precision from those that forgot part of it.
#include "tutti/amp/precision.h"

namespace tutti {

/// Asked by every reducer when a backward pass begins. One backward pass at a time.
class PrecisionGuard {
 public:
  explicit PrecisionGuard(Precision precision) : precision_(precision) {}

  /// An autocast scope was opened.
  void autocast_opened() { autocast_opened_ = true; }
  /// While it lives, a backward pass runs on a loss that was scaled.
  class ScaledBackward {
   public:
    explicit ScaledBackward(PrecisionGuard& guard) : guard_(guard) { guard_.in_scaled_backward_ = true; }
    ~ScaledBackward() { guard_.in_scaled_backward_ = false; }
    ScaledBackward(const ScaledBackward&) = delete;
    ScaledBackward& operator=(const ScaledBackward&) = delete;

   private:
    PrecisionGuard& guard_;
  };

  /// Called on a thread that runs a backward pass. Throws UsageError for an unscaled loss under fp16, and for a graph
  /// that no autocast has made: nothing in it was cast, and no scope was opened since the pass before. Throws it also
  /// for an unscaled loss whose batch weighs nothing (see join_uneven_inputs()).
  void check(bool weighs_nothing = false);

 private:
  Precision precision_;
  bool autocast_opened_ = false;
  bool in_scaled_backward_ = false;
  int checked_task_ = -1;
};

}  // namespace tutti
