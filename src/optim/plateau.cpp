#include "tutti/optim/plateau.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "optim/step_options.h"
#include "tutti/core/error.h"
#include "tutti/detail/core/call_site_scope.h"

namespace tutti {

namespace {

void require_option(bool condition, const std::string& what) {
  if (!condition) throw UsageError("ReduceLROnPlateau: " + what);
}

void check(const PlateauOptions& options, std::size_t groups) {
  require_option(options.factor >= 0 && options.factor < 1,
                 "factor is " + std::to_string(options.factor) + ", must be at least 0 and less than 1");
  require_option(options.patience >= 0, "patience is " + std::to_string(options.patience) + ", must not be negative");
  require_option(options.cooldown >= 0, "cooldown is " + std::to_string(options.cooldown) + ", must not be negative");
  require_option(options.threshold >= 0,
                 "threshold is " + std::to_string(options.threshold) + ", must not be negative");
  require_option(options.eps >= 0, "eps is " + std::to_string(options.eps) + ", must not be negative");
  require_option(options.min_lr.size() == 1 || options.min_lr.size() == groups,
                 "min_lr has " + std::to_string(options.min_lr.size()) + " values, needs one, or one for each of the " +
                     std::to_string(groups) + " parameter groups");
  for (const double rate : options.min_lr) {
    require_option(rate >= 0, "a min_lr is " + std::to_string(rate) + ", must not be negative");
  }
}

std::string name_of(PlateauMode mode) {
  return mode == PlateauMode::min ? "min" : "max";
}

}  // namespace

ReduceLROnPlateau::ReduceLROnPlateau(Optimizer optimizer, const PlateauOptions& options,
                                     std::function<double(double)> agree)
    : optimizer_(std::move(optimizer)), options_(options), agree_(std::move(agree)) {
  require_learning_rate(optimizer_.inner(), "ReduceLROnPlateau");
  check(options_, optimizer_.inner().param_groups().size());
  options_.min_lr.resize(optimizer_.inner().param_groups().size(), options_.min_lr.front());
  if (options_.mode == PlateauMode::max) state_->best = -state_->best;
  state_->last_rates = learning_rates_of(optimizer_.inner());
}

void ReduceLROnPlateau::step(double metric, const CallSite& where) {
  const CallSiteScope here(where);
  metric = agree_(metric);
  ++state_->last_epoch;
  if (improves(metric)) {
    state_->best = metric;
    state_->num_bad_epochs = 0;
  } else {
    ++state_->num_bad_epochs;
  }
  if (state_->cooldown_counter > 0) {
    --state_->cooldown_counter;
    state_->num_bad_epochs = 0;
  }
  if (state_->num_bad_epochs > options_.patience) {
    reduce();
    state_->cooldown_counter = options_.cooldown;
    state_->num_bad_epochs = 0;
  }
  state_->last_rates = learning_rates_of(optimizer_.inner());
}

// NaN is neither less nor greater, so it never improves.
bool ReduceLROnPlateau::improves(double metric) const {
  const bool relative = options_.threshold_mode == ThresholdMode::rel;
  const double best = state_->best;
  if (options_.mode == PlateauMode::min) {
    return metric < (relative ? best * (1.0 - options_.threshold) : best - options_.threshold);
  }
  return metric > (relative ? best * (1.0 + options_.threshold) : best + options_.threshold);
}

void ReduceLROnPlateau::reduce() {
  auto& groups = optimizer_.inner().param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const double before = groups[i].options().get_lr();
    // A group that was added later has the last lower bound.
    const double least = i < options_.min_lr.size() ? options_.min_lr[i] : options_.min_lr.back();
    const double reduced = std::max(before * options_.factor, least);
    if (before - reduced > options_.eps) groups[i].options().set_lr(reduced);
  }
}

StateDict ReduceLROnPlateau::state_dict() const {
  StateDict state;
  state.set("mode", name_of(options_.mode));
  state.set("best", state_->best);
  state.set("num_bad_epochs", state_->num_bad_epochs);
  state.set("cooldown_counter", state_->cooldown_counter);
  state.set("last_epoch", state_->last_epoch);
  state.set("_last_lr", learning_rates_of(optimizer_.inner()));
  return state;
}

void ReduceLROnPlateau::load_state_dict(const StateDict& state) {
  const auto& mode = state.get<std::string>("mode");
  if (mode != name_of(options_.mode)) {
    throw CheckpointError("the saved ReduceLROnPlateau has mode '" + mode + "', this one '" + name_of(options_.mode) +
                          "', so its best metric does not apply");
  }
  State loaded{.best = state.get<double>("best"),
               .num_bad_epochs = state.get<std::int64_t>("num_bad_epochs"),
               .cooldown_counter = state.get<std::int64_t>("cooldown_counter"),
               .last_epoch = state.get<std::int64_t>("last_epoch"),
               .last_rates = state.get<std::vector<double>>("_last_lr")};
  auto& groups = optimizer_.inner().param_groups();
  if (loaded.last_rates.size() != groups.size()) {
    throw CheckpointError("the saved ReduceLROnPlateau is for " + std::to_string(loaded.last_rates.size()) +
                          " parameter groups, the optimizer has " + std::to_string(groups.size()));
  }
  for (const double rate : loaded.last_rates) {
    if (std::isfinite(rate)) continue;
    throw CheckpointError("the saved ReduceLROnPlateau is damaged: it has a learning rate of " + std::to_string(rate));
  }
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(loaded.last_rates[i]);
  *state_ = std::move(loaded);
}

}  // namespace tutti
