#include "tutti/amp/grad_scaler.h"

#include <cmath>
#include <string>

#include "tutti/core/error.h"

namespace tutti {

namespace {

/// Losses and sums are multiplied by the scale and its reciprocal as floats. Both must be finite and not 0.
bool is_usable(double scale) {
  return std::isnormal(static_cast<float>(scale));
}

/// The first problem of `options`, or empty.
std::string problem_of(const GradScalerOptions& options) {
  if (!(options.init_scale > 0) || !is_usable(options.init_scale)) {
    return "the scale must be positive and in the range of normal floats";
  }
  if (!(options.growth_factor > 1) || !std::isfinite(options.growth_factor)) return "growth_factor must be above 1";
  if (!(options.backoff_factor > 0 && options.backoff_factor < 1)) return "backoff_factor must be between 0 and 1";
  if (options.growth_interval < 1) return "growth_interval must be at least 1";
  return {};
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options), scale_(options.init_scale) {
  if (const std::string problem = problem_of(options); !problem.empty()) throw UsageError("GradScaler: " + problem);
}

void GradScaler::update(bool overflowed) {
  if (!overflowed && ++growth_tracker_ < options_.growth_interval) return;
  growth_tracker_ = 0;
  // With a scale beyond the range every later step would overflow.
  const double next = scale_ * (overflowed ? options_.backoff_factor : options_.growth_factor);
  if (is_usable(next)) scale_ = next;
}

StateDict GradScaler::state_dict() const {
  StateDict state;
  state.set("scale", scale_);
  state.set("growth_factor", options_.growth_factor);
  state.set("backoff_factor", options_.backoff_factor);
  state.set("growth_interval", options_.growth_interval);
  state.set("_growth_tracker", growth_tracker_);
  return state;
}

void GradScaler::load_state_dict(const StateDict& state) {
  const GradScalerOptions options{.init_scale = state.get<double>("scale"),
                                  .growth_factor = state.get<double>("growth_factor"),
                                  .backoff_factor = state.get<double>("backoff_factor"),
                                  .growth_interval = state.get<std::int64_t>("growth_interval")};
  const auto tracker = state.get<std::int64_t>("_growth_tracker");
  if (const std::string problem = problem_of(options); !problem.empty()) {
    throw CheckpointError("the saved GradScaler is damaged: " + problem);
  }
  if (tracker < 0 || tracker >= options.growth_interval) {
    throw CheckpointError("the saved GradScaler is damaged: its growth tracker is " + std::to_string(tracker));
  }
  options_ = options;
  scale_ = options.init_scale;
  growth_tracker_ = tracker;
}

}  // namespace tutti
