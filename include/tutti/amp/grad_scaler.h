#pragma once
// The scale of the loss in float16 training: small gradients survive, and what overflows is skipped. Pure: whether
// gradients overflowed is told to it, by a synchronization that gives all ranks the same answer.
//
// Micikevicius et al., "Mixed Precision Training", ICLR 2018; defaults and rule are torch.amp.GradScaler's.
#include <cstdint>

#include "tutti/state/stateful.h"

namespace tutti {

/// torch.amp.GradScaler's arguments and defaults.
struct GradScalerOptions {
  double init_scale = 65536.0;          ///< what losses are multiplied by at first
  double growth_factor = 2.0;           ///< after growth_interval steps in a row without overflow
  double backoff_factor = 0.5;          ///< after an overflow
  std::int64_t growth_interval = 2000;  ///< optimizer steps
};

/// The state's names are PyTorch's ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker").
class GradScaler final : public Stateful {
 public:
  /// Begins at init_scale. Throws UsageError for a scale that is not positive and finite, growth_factor <= 1,
  /// backoff_factor outside (0, 1), growth_interval < 1.
  explicit GradScaler(const GradScalerOptions& options = {});

  /// What losses are multiplied by now.
  double scale() const { return scale_; }
  /// An optimizer step has been taken, or skipped because `overflowed`.
  void update(bool overflowed);

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  GradScalerOptions options_;
  double scale_;
  std::int64_t growth_tracker_ = 0;
};

}  // namespace tutti
