#include "tutti/train/callbacks/early_stopping.h"

#include <cmath>
#include <string>
#include <utility>

#include "train/callbacks/metric.h"
#include "tutti/core/error.h"
#include "tutti/train/trainer_context.h"

namespace tutti {

EarlyStopping::EarlyStopping(EarlyStoppingOptions options)
    : options_(std::move(options)), best_(worst_metric(options_.lower_is_better)) {
  if (options_.patience < 1) throw UsageError("EarlyStopping: patience must be at least 1");
  if (!(options_.min_delta >= 0) || !std::isfinite(options_.min_delta))
    throw UsageError("EarlyStopping: min_delta must not be negative, and must be finite");
}

StateDict EarlyStopping::state_dict() const {
  StateDict state;
  state.set("best", best_);
  state.set("bad_evaluations", bad_);
  return state;
}

void EarlyStopping::load_state_dict(const StateDict& state) {
  const auto best = state.get<double>("best");
  bad_ = state.get<std::int64_t>("bad_evaluations");
  best_ = best;
}

void EarlyStopping::on_fit_start(TrainerContext& trainer) {
  if (bad_ < options_.patience) return;
  trainer.stop("EarlyStopping ended this run before");
  if (!trainer.accelerator().is_main_process()) return;
  trainer.accelerator().logger().warning("EarlyStopping ended this run at step " +
                                         std::to_string(trainer.global_step()) + ", after " + std::to_string(bad_) +
                                         " evaluations without progress: increase its patience to continue training");
}

void EarlyStopping::on_evaluate_end(TrainerContext& trainer, const Scalars& results) {
  const double value = metric_in(results, options_.metric, "EarlyStopping");
  if (is_better(value, best_, options_.lower_is_better, options_.min_delta)) {
    best_ = value;
    bad_ = 0;
  } else if (++bad_ >= options_.patience) {
    trainer.stop("EarlyStopping: " + std::to_string(bad_) + " evaluations without progress of " + options_.metric);
  }
}

}  // namespace tutti
