#include "tutti/optim/lr_schedule.h"

#include <cmath>
#include <string>

#include "tutti/core/error.h"

namespace tutti {

namespace {

void require_length(bool condition, const std::string& message) {
  if (!condition) throw UsageError("the length of a training run: " + message);
}

void check_at_least_one(const char* name, std::int64_t value) {
  require_length(value >= 1, std::string(name) + " is " + std::to_string(value) + ", must be at least 1");
}

// Of samples, micro-batches and steps. Sums of two such numbers do not overflow.
constexpr std::int64_t most_of_run = std::int64_t{1} << 62;

void check_at_most(const char* name, std::int64_t value, std::int64_t most) {
  require_length(value <= most,
                 std::string(name) + " is " + std::to_string(value) + ", must be at most " + std::to_string(most));
}

// Products of two such numbers do not overflow, and are less than most_of_run.
void check_count(const char* name, std::int64_t value) {
  check_at_least_one(name, value);
  check_at_most(name, value, 2'147'483'647);
}

/// Both shardings give the same number: rounds of one micro-batch per rank, the last round filled or dropped.
std::int64_t batches_of_epoch(const TrainingLength& length) {
  check_at_least_one("dataset_size", length.dataset_size);
  check_at_most("dataset_size", length.dataset_size, most_of_run);
  const std::int64_t round = length.batch_size * length.num_processes;
  const std::int64_t batches = (length.dataset_size + (length.drop_last ? 0 : round - 1)) / round;
  require_length(batches >= 1, "drop_last leaves no batch of the " + std::to_string(length.dataset_size) + " samples");
  return batches;
}

/// Rounded up, after removing the rounding error of a product such as 1.1 * 10.
std::int64_t micro_batches_of(double num_epochs, std::int64_t batches) {
  require_length(num_epochs > 0 && num_epochs <= 1e9,
                 "num_epochs is " + std::to_string(num_epochs) + ", must be positive");
  const double exact = num_epochs * static_cast<double>(batches);
  require_length(
      exact < static_cast<double>(most_of_run),
      "num_epochs is " + std::to_string(num_epochs) + ", too many of " + std::to_string(batches) + " batches each");
  const double nearest = std::round(exact);
  return static_cast<std::int64_t>(std::abs(exact - nearest) <= 1e-9 * exact ? nearest : std::ceil(exact));
}

}  // namespace

std::int64_t advance(const SchedulePace& pace, bool at_window_end) {
  switch (pace.rule) {
    case ScheduleRule::accelerate:
      return at_window_end ? pace.num_processes : 0;
    case ScheduleRule::accelerate_micro_batch:
      return pace.num_processes;
    default:
      return at_window_end ? 1 : 0;
  }
}

std::int64_t gradient_accumulation_steps(const TrainingLength& length) {
  check_count("batch_size", length.batch_size);
  check_count("num_processes", length.num_processes);
  const std::int64_t given = length.gradient_accumulation_steps.value_or(1);
  check_count("gradient_accumulation_steps", given);
  if (!length.real_batch_size) return given;

  const std::int64_t real = *length.real_batch_size;
  const std::int64_t round = length.batch_size * length.num_processes;
  check_at_least_one("real_batch_size", real);
  check_at_most("real_batch_size", real, most_of_run);
  require_length(real % round == 0, "real_batch_size is " + std::to_string(real) +
                                        ", must be divisible by batch_size " + std::to_string(length.batch_size) +
                                        " x num_processes " + std::to_string(length.num_processes));
  require_length(length.gradient_accumulation_steps.value_or(real / round) == real / round,
                 "gradient_accumulation_steps is " + std::to_string(given) + ", but real_batch_size " +
                     std::to_string(real) + " makes it " + std::to_string(real / round) + ": give one of them");
  return real / round;
}

std::int64_t total_steps(ScheduleRule rule, const TrainingLength& length) {
  require_length(length.num_epochs.has_value() != length.num_steps.has_value(), "give one of num_epochs and num_steps");
  const std::int64_t accumulation = gradient_accumulation_steps(length);
  std::int64_t micro_batches = 0;
  std::int64_t windows = 0;
  if (length.num_steps && length.dataset_size == 0) {
    micro_batches = *length.num_steps;
    check_at_least_one("num_steps", micro_batches);
    windows = micro_batches / accumulation;
  } else {
    const std::int64_t epoch = batches_of_epoch(length);
    micro_batches = length.num_steps ? *length.num_steps : micro_batches_of(*length.num_epochs, epoch);
    check_at_least_one("num_steps", micro_batches);
    const std::int64_t windows_of_epoch = (epoch + accumulation - 1) / accumulation;
    windows = micro_batches / epoch * windows_of_epoch + micro_batches % epoch / accumulation;
  }
  check_at_most("the number of micro-batches", micro_batches, most_of_run / length.num_processes);
  require_length(windows >= 1, std::to_string(micro_batches) + " micro-batches are less than the " +
                                   std::to_string(accumulation) + " of one optimizer step");
  switch (rule) {
    case ScheduleRule::accelerate:
      return windows * length.num_processes;
    case ScheduleRule::accelerate_micro_batch:
      return micro_batches * length.num_processes;
    default:
      return windows;
  }
}

}  // namespace tutti
