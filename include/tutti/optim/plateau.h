#pragma once
// Lowers an optimizer's learning rate when a metric stops improving.
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "tutti/core/call_site.h"
#include "tutti/optim/optimizer.h"
#include "tutti/state/stateful.h"

namespace tutti {

/// What an improvement is.
enum class PlateauMode {
  min,  ///< a lower metric
  max,  ///< a higher metric
};
/// What PlateauOptions::threshold is.
enum class ThresholdMode {
  rel,  ///< a share of the best metric
  abs,  ///< a difference from it
};

/// torch's arguments and defaults.
struct PlateauOptions {
  /// Whether the metric should fall or rise.
  PlateauMode mode = PlateauMode::min;
  double factor = 0.1;         ///< what the rates are multiplied by
  std::int64_t patience = 10;  ///< metrics in a row without an improvement that are let pass
  /// An improvement is more than this share of the best metric (rel), or more than this (abs).
  double threshold = 1e-4;
  /// How `threshold` is meant.
  ThresholdMode threshold_mode = ThresholdMode::rel;
  std::int64_t cooldown = 0;           ///< metrics after a reduction that do not count as bad
  std::vector<double> min_lr = {0.0};  ///< one for all parameter groups, or one for each
  double eps = 1e-8;                   ///< a reduction by less is left out
};

/// torch.optim.lr_scheduler.ReduceLROnPlateau. A small value; copies share the state. Every rank steps it, with a
/// metric of its own: they are made one first, so that the ranks' rates stay equal. One thread.
class ReduceLROnPlateau final : public Stateful {
 public:
  /// `agree` gives all ranks the same metric, for example the mean; by default every rank keeps its own, which is right
  /// only where they are equal already. Throws UsageError for options out of range.
  explicit ReduceLROnPlateau(
      Optimizer optimizer, const PlateauOptions& options = {},
      std::function<double(double)> agree = [](double metric) { return metric; });

  /// One more metric, such as an epoch's validation loss. NaN is no improvement. Every rank must call it where `agree`
  /// communicates. `where` is filled in by the compiler.
  void step(double metric, const CallSite& where = CallSite::here());

  /// Rates by parameter group, as they stood after the last step.
  const std::vector<double>& last_rates() const { return state_->last_rates; }
  /// The best metric so far.
  double best() const { return state_->best; }
  /// Metrics in a row without an improvement.
  std::int64_t num_bad_epochs() const { return state_->num_bad_epochs; }
  /// Whether a reduction was so recent that bad metrics do not count.
  bool in_cooldown() const { return state_->cooldown_counter > 0; }

  /// Names as in PyTorch: best, num_bad_epochs, cooldown_counter, last_epoch, _last_lr, mode.
  StateDict state_dict() const override;
  /// Sets the optimizer's rates too.
  void load_state_dict(const StateDict& state) override;

 private:
  struct State {
    double best = std::numeric_limits<double>::infinity();
    std::int64_t num_bad_epochs = 0;
    std::int64_t cooldown_counter = 0;
    std::int64_t last_epoch = 0;  // how many metrics there were
    std::vector<double> last_rates;
  };
  bool improves(double metric) const;
  void reduce();
  std::vector<double> rates() const;

  Optimizer optimizer_;
  PlateauOptions options_;
  std::function<double(double)> agree_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace tutti
