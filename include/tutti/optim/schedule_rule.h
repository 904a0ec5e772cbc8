#pragma once
// What a schedule's position counts, and so how many positions a training run has. Pure.
#include <cstdint>
#include <optional>

namespace tutti {

/// What moves a schedule on.
enum class ScheduleRule {
  /// One position for each optimizer step: the length of a schedule is the number of updates, whatever the number of
  /// ranks. tutti's default.
  optimizer_step,
  /// Hugging Face Accelerate's: at each optimizer step as many positions as there are processes, so that a schedule
  /// whose length was meant for one process ends on time on several.
  accelerate,
  /// Accelerate's with adjust_scheduler as it is documented: as many positions as there are processes
  /// for each micro-batch, so that the length is the number of micro-batches that all processes read together.
  accelerate_micro_batch,
};

/// How far one Scheduler::step() goes.
struct SchedulePace {
  /// What counts as a position.
  ScheduleRule rule = ScheduleRule::optimizer_step;
  std::int64_t num_processes = 1;  ///< ranks of the job; ScheduleRule::optimizer_step does without
};

/// Positions that step() advances: `at_window_end` tells an optimizer step from another micro-batch.
std::int64_t advance(const SchedulePace& pace, bool at_window_end);

/// What decides a run's length. Exactly one of num_epochs and num_steps is given.
struct TrainingLength {
  /// Samples. With num_steps it may be 0: then no epoch ends within the run.
  std::int64_t dataset_size = 0;
  std::int64_t batch_size = 1;     ///< samples in one rank's micro-batch
  std::int64_t num_processes = 1;  ///< ranks of the job
  /// Micro-batches of one rank in an optimizer step. Unset: derived from real_batch_size, or 1 without that.
  std::optional<std::int64_t> gradient_accumulation_steps{};
  /// Samples in an optimizer step on all ranks: batch_size x accumulation x processes.
  std::optional<std::int64_t> real_batch_size{};
  /// May be a fraction: then the last epoch is left after the share of its micro-batches, rounded up.
  std::optional<double> num_epochs{};
  /// Micro-batches of one rank.
  std::optional<std::int64_t> num_steps{};
  /// As DataLoaderOptions has it.
  bool drop_last = false;
};

/// real_batch_size / (batch_size x num_processes). Throws UsageError when that is no whole number, or when what is
/// given contradicts it.
std::int64_t gradient_accumulation_steps(const TrainingLength& length);

/// The positions of a whole run, which is what advance() adds up to over it: the total to build a schedule with, so
/// that it ends exactly at the last step. Counts what tutti's loader deals: the short last batch and the short last
/// window of every epoch included. Where the data divide evenly, accelerate_micro_batch gives dataset_size x num_epochs
/// / batch_size, or num_steps x num_processes. A run that is left within an epoch may leave a window open: it takes no
/// optimizer step, and its micro-batches count for accelerate_micro_batch only. Throws UsageError as
/// gradient_accumulation_steps(), and for runs without an optimizer step.
std::int64_t total_steps(ScheduleRule rule, const TrainingLength& length);

}  // namespace tutti
