#include "train/unprepared_training_detector.h"

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "tutti/core/error.h"

namespace tutti {

namespace {

// Global, because LibTorch's callbacks are plain functions. The count is used for a diagnosis only.
std::atomic<std::int64_t> gradients_accumulated = 0;
std::atomic<bool> anything_prepared = false;

std::unique_ptr<at::ObserverContext> count_gradient(const at::RecordFunction& function) {
  if (std::string_view(function.name()).find("AccumulateGrad") != std::string_view::npos) ++gradients_accumulated;
  return nullptr;
}

}  // namespace

UnpreparedTrainingDetector::UnpreparedTrainingDetector()
    : before_(gradients_accumulated),
      callback_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(count_gradient).scopes({at::RecordScope::BACKWARD_FUNCTION}))) {}

UnpreparedTrainingDetector::~UnpreparedTrainingDetector() {
  at::removeCallback(callback_);
}

void UnpreparedTrainingDetector::check(int ranks) const {
  if (anything_prepared || gradients_accumulated == before_) return;
  throw UsageError("a backward pass between batches of a loader on " + std::to_string(ranks) +
                   " ranks, with nothing prepared: each rank trains a model of its own. Pass model and optimizer to "
                   "prepare() before the loop");
}

void UnpreparedTrainingDetector::note_prepared() {
  anything_prepared = true;
}

}  // namespace tutti
