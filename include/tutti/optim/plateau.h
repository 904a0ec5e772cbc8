#pragma once
// Lowers an optimizer's learning rate when a metric stops improving.
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "tutti/detail/core/call_site.h"
#include "tutti/optim/optimizer.h"
#include "tutti/state/stateful.h"

namespace tutti {

/// The direction of an improvement.
enum class PlateauMode {
  min,  ///< a lower metric
  max,  ///< a higher metric
};
/// The unit of PlateauOptions::threshold.
enum class ThresholdMode {
  rel,  ///< a fraction of the best metric
  abs,  ///< a difference from the best metric
};

/// The arguments and defaults of torch.optim.lr_scheduler.ReduceLROnPlateau.
struct PlateauOptions {
  /// Whether the metric should fall or rise.
  PlateauMode mode = PlateauMode::min;
  double factor = 0.1;         ///< factor of a reduction
  std::int64_t patience = 10;  ///< consecutive metrics without improvement that cause no reduction
  /// The smallest change that counts as an improvement.
  double threshold = 1e-4;
  /// The unit of `threshold`.
  ThresholdMode threshold_mode = ThresholdMode::rel;
  std::int64_t cooldown = 0;           ///< metrics after a reduction that do not count as bad
  std::vector<double> min_lr = {0.0};  ///< lower bounds: one for all parameter groups, or one for each
  double eps = 1e-8;                   ///< reductions smaller than this are skipped
};

/// torch.optim.lr_scheduler.ReduceLROnPlateau. A handle: copies share the state. Every rank steps it with its own
/// metric; `agree` makes the metrics equal, so the learning rates stay equal on all ranks. Not thread safe.
class ReduceLROnPlateau final : public Stateful {
 public:
  /// `agree` maps the metric of this rank to a metric that is equal on all ranks, for example the mean. The default
  /// returns its argument, which is correct only if the metrics are equal. Throws UsageError for options out of range,
  /// and for an optimizer without a learning rate.
  explicit ReduceLROnPlateau(
      Optimizer optimizer, const PlateauOptions& options = {},
      std::function<double(double)> agree = [](double metric) { return metric; });

  /// Takes the next metric, such as the validation loss of an epoch. NaN is no improvement. Every rank must call it if
  /// `agree` communicates. The compiler fills in `where`.
  void step(double metric, const CallSite& where = CallSite::here());

  /// Learning rates by parameter group after the last step.
  const std::vector<double>& last_rates() const { return state_->last_rates; }
  /// The best metric so far.
  double best() const { return state_->best; }
  /// Consecutive metrics without improvement.
  std::int64_t num_bad_epochs() const { return state_->num_bad_epochs; }
  /// Whether bad metrics do not count because of a recent reduction.
  bool in_cooldown() const { return state_->cooldown_counter > 0; }

  /// Names as in PyTorch: best, num_bad_epochs, cooldown_counter, last_epoch, _last_lr, mode. _last_lr are the
  /// optimizer's present rates.
  StateDict state_dict() const override;
  /// Also sets the optimizer's learning rates.
  void load_state_dict(const StateDict& state) override;

 private:
  struct State {
    double best = std::numeric_limits<double>::infinity();
    std::int64_t num_bad_epochs = 0;
    std::int64_t cooldown_counter = 0;
    std::int64_t last_epoch = 0;  // number of metrics so far
    std::vector<double> last_rates;
  };
  bool improves(double metric) const;
  void reduce();

  Optimizer optimizer_;
  PlateauOptions options_;
  std::function<double(double)> agree_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace tutti
