// Accelerator: logging and trackers.
#include <cstdint>
#include <string>
#include <utility>

#include "tracking/step_limit.h"
#include "train/accelerator_state.h"
#include "tutti/core/error.h"
#include "tutti/tracking/jsonl_tracker.h"

namespace tutti {

namespace {

void require_step(const char* caller, std::int64_t step) {
  if (step >= 0 && step <= largest_step) return;
  throw UsageError(std::string(caller) + "() with step " + std::to_string(step) + ": a step is 0 to 2^53");
}

}  // namespace

void Accelerator::add_tracker(std::unique_ptr<Tracker> tracker) {
  if (!tracker) throw UsageError("add_tracker() with a null pointer");
  if (!is_main_process()) return;
  const auto& run = state_->tracked_run;
  if (run && run->step) tracker->start(run->name, run->hyperparameters, *run->step);
  state_->trackers.push_back(std::move(tracker));
}

void Accelerator::init_trackers(const std::string& run, const Hyperparameters& hyperparameters,
                                std::optional<std::int64_t> step) {
  require_step("init_trackers", step.value_or(0));
  if (!state_->project.project_dir.empty() && is_main_process() && state_->project_metrics == nullptr) {
    auto tracker = std::make_unique<JsonlTracker>(state_->project.project_dir / "metrics.jsonl");
    state_->project_metrics = tracker.get();
    state_->trackers.push_back(std::move(tracker));
  }
  state_->tracked_run = {.name = run, .hyperparameters = hyperparameters};
  if (step) state_->start_tracked_run(*step);
}

void Accelerator::State::start_tracked_run(std::int64_t step) {
  for (const auto& tracker : trackers) tracker->start(tracked_run->name, tracked_run->hyperparameters, step);
  tracked_run->step = step;  // unless a tracker has thrown
}

void Accelerator::State::start_with_value(const char* caller, std::int64_t step) {
  require_step(caller, step);
  require_tracked_run(caller);
  if (tracked_run && !tracked_run->step) start_tracked_run(has_loaded_state && step > 0 ? step - 1 : 0);
}

void Accelerator::log(const Scalars& scalars, std::int64_t step) {
  state_->start_with_value("log", step);
  for (const auto& tracker : state_->trackers) tracker->log(step, scalars);
}

void Accelerator::log_text(const std::string& name, const std::string& text, std::int64_t step) {
  state_->start_with_value("log_text", step);
  for (const auto& tracker : state_->trackers) tracker->log_text(step, name, text);
}

void Accelerator::State::require_tracked_run(const char* caller) const {
  const bool has_trackers = !trackers.empty() || !project.project_dir.empty();
  if (tracked_run || !has_trackers || !is_main_process()) return;
  throw UsageError(std::string(caller) +
                   "() before init_trackers(): the values would be lost. Call init_trackers() first");
}

}  // namespace tutti
