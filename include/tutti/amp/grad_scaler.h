#pragma once
// The loss scale of float16 training. It keeps small gradients above the smallest float16 number; steps whose gradients
// overflow are skipped. No I/O: the caller passes whether gradients overflowed, which must be equal on all ranks.
//
// Micikevicius et al., "Mixed Precision Training", ICLR 2018; defaults and rule are torch.amp.GradScaler's.
#include <cstdint>

#include "tutti/state/stateful.h"

namespace tutti {

/// torch.amp.GradScaler's arguments and defaults.
struct GradScalerOptions {
  double init_scale = 65536.0;          ///< initial factor on losses
  double growth_factor = 2.0;           ///< factor on the scale after growth_interval steps without overflow
  double backoff_factor = 0.5;          ///< factor on the scale after an overflow
  std::int64_t growth_interval = 2000;  ///< optimizer steps
};

/// State names as in PyTorch: "scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker".
class GradScaler final : public Stateful {
 public:
  /// The scale starts at init_scale. Throws UsageError for a scale that is no positive normal float, growth_factor <=
  /// 1, backoff_factor outside (0, 1), growth_interval < 1.
  explicit GradScaler(const GradScalerOptions& options = {});

  /// The current factor on losses.
  double scale() const { return scale_; }
  /// Must be called after each optimizer step. `overflowed`: the step was skipped because gradients overflowed.
  void update(bool overflowed);

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  GradScalerOptions options_;
  double scale_;
  std::int64_t growth_tracker_ = 0;
};

}  // namespace tutti
