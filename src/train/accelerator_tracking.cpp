// Accelerator: logging and trackers.
#include <utility>

#include "train/accelerator_state.h"
#include "tutti/tracking/jsonl_tracker.h"

namespace tutti {

void Accelerator::add_tracker(std::unique_ptr<Tracker> tracker) {
  if (is_main_process()) state_->trackers.push_back(std::move(tracker));
}

void Accelerator::init_trackers(const std::string& run, const Hyperparameters& hyperparameters, std::int64_t step) {
  if (!state_->project.project_dir.empty() && is_main_process() && state_->project_metrics == nullptr) {
    auto tracker = std::make_unique<JsonlTracker>(state_->project.project_dir / "metrics.jsonl");
    state_->project_metrics = tracker.get();
    add_tracker(std::move(tracker));
  }
  for (const auto& tracker : state_->trackers) tracker->start(run, hyperparameters, step);
}

void Accelerator::log(const Scalars& scalars, std::int64_t step) {
  for (const auto& tracker : state_->trackers) tracker->log(step, scalars);
}

void Accelerator::log_text(const std::string& name, const std::string& text, std::int64_t step) {
  for (const auto& tracker : state_->trackers) tracker->log_text(step, name, text);
}

}  // namespace tutti
