#pragma once
// A learning rate schedule: a curve (a factor on the optimizer's learning rates by position), the unit of the position,
// and the number of positions in a training run. No I/O. schedules.h has the usual curves.
#include <cstdint>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

namespace tutti {

/// A curve, made from any callable double(std::int64_t position), as PyTorch's LambdaLR. Position 0 is the first step.
class LrSchedule {
 public:
  /// A curve for the learning rate: `LrSchedule([](std::int64_t position) { return ...; })`.
  template <typename Curve>
  requires std::is_invocable_r_v<double, const Curve&, std::int64_t> LrSchedule(Curve curve)
      : factor_(std::move(curve)) {}
  /// A curve for the learning rate and a curve for the momentum (beta1 of the Adam family), as in one_cycle().
  LrSchedule(std::function<double(std::int64_t)> factor, std::function<double(std::int64_t)> momentum)
      : factor_(std::move(factor)), momentum_(std::move(momentum)) {}

  /// The factor at `position` on the learning rates that the optimizer had when it was prepared.
  double factor(std::int64_t position) const { return factor_(position); }
  /// Whether momentum() may be called.
  bool has_momentum() const { return static_cast<bool>(momentum_); }
  /// The momentum at `position`. It replaces the optimizer's momentum.
  double momentum(std::int64_t position) const { return momentum_(position); }

 private:
  std::function<double(std::int64_t)> factor_;
  std::function<double(std::int64_t)> momentum_;
};

/// How a schedule advances.
enum class ScheduleRule {
  /// One position per optimizer step, so the length of a schedule is the number of updates for any number of ranks.
  /// tutti's default.
  optimizer_step,
  /// Hugging Face Accelerate's rule: num_processes positions per optimizer step. A schedule whose length was set for
  /// one process then ends at the same epoch on several. For loaders with split_batches use optimizer_step: Accelerate
  /// then advances by one position too.
  accelerate,
  /// Accelerate's rule with adjust_scheduler, as documented: num_processes positions per micro-batch. The length is
  /// the number of micro-batches of all processes together.
  accelerate_micro_batch,
};

/// The number of positions that one Scheduler::step() advances.
struct SchedulePace {
  /// The unit of a position.
  ScheduleRule rule = ScheduleRule::optimizer_step;
  std::int64_t num_processes = 1;  ///< ranks of the job; ScheduleRule::optimizer_step ignores it
};

/// Positions that step() advances. `at_window_end`: true for an optimizer step, false for another micro-batch.
std::int64_t advance(const SchedulePace& pace, bool at_window_end);

/// The length of a training run. Set exactly one of num_epochs and num_steps.
struct TrainingLength {
  /// Samples. May be 0 with num_steps: no epoch ends within the run then.
  std::int64_t dataset_size = 0;
  std::int64_t batch_size = 1;     ///< samples in one rank's micro-batch
  std::int64_t num_processes = 1;  ///< ranks of the job
  /// Micro-batches of one rank in an optimizer step. Unset: derived from real_batch_size, or 1 without it.
  std::optional<std::int64_t> gradient_accumulation_steps{};
  /// Samples in an optimizer step on all ranks: batch_size x accumulation x processes.
  std::optional<std::int64_t> real_batch_size{};
  /// May be a fraction: the last epoch then ends after this fraction of its micro-batches, rounded up.
  std::optional<double> num_epochs{};
  /// Micro-batches of one rank.
  std::optional<std::int64_t> num_steps{};
  /// As in DataLoaderOptions.
  bool drop_last = false;
};

/// Returns real_batch_size / (batch_size x num_processes). Throws UsageError if the quotient is not an integer or
/// contradicts length.gradient_accumulation_steps.
std::int64_t gradient_accumulation_steps(const TrainingLength& length);

/// Returns the positions of a whole run, the sum of advance() over it. A schedule of this length ends exactly at the
/// last step. Counts the batches of tutti's loader, with the short last batch and the short last window of every epoch.
/// If the data divide evenly, accelerate_micro_batch gives dataset_size x num_epochs / batch_size, or num_steps x
/// num_processes. A run that ends within an epoch may leave a window open: the window has no optimizer step, and its
/// micro-batches count for accelerate_micro_batch only. Throws UsageError as gradient_accumulation_steps(), and for
/// runs without an optimizer step.
std::int64_t total_steps(ScheduleRule rule, const TrainingLength& length);

}  // namespace tutti
