#include "sync/window.h"

#include "tutti/core/error.h"

namespace tutti {

WeightUnit combined(WeightUnit a, WeightUnit b) {
  if (a == WeightUnit::none || a == b) return b;
  return b == WeightUnit::none ? a : WeightUnit::mixed;
}

void Window::begin_plain_pass() {
  if (weighting_ == Weighting::weighted) {
    throw UsageError(
        "a backward pass outside accumulate() in a window whose other passes were inside: their weights would not "
        "apply to it. Call optimizer.step() or zero_grad() in between, or put all passes into accumulate()");
  }
  weighting_ = Weighting::plain;
  ++passes_;
}

void Window::begin_weighted_pass() {
  add_weight(0);
  ++passes_;
}

void Window::add_weight(double weight, WeightUnit unit) {
  if (weighting_ == Weighting::plain) {
    throw UsageError(
        "a backward pass inside accumulate() in a window whose other passes were outside: they have no weights. Call "
        "optimizer.step() or zero_grad() in between, or put all passes into accumulate()");
  }
  weighting_ = Weighting::weighted;
  weight_ += weight;
  if (weight > 0) weight_unit_ = combined(weight_unit_, unit);
}

void Window::drop_weights() {
  weighting_ = Weighting::undecided;
  weight_ = 0;
  weight_unit_ = WeightUnit::none;
}

void Window::adopt(Weighting weighting) {
  if (passes_ > 0 || weighting == Weighting::undecided) return;
  if (weighting == Weighting::plain) drop_weights();
  weighting_ = weighting;
}

void Window::restart(bool stepped) {
  if (stepped) {
    ++steps_;
    if (length() > 0) lengths_ = {.last = length(), .before = lengths_.last};
  }
  passes_ = joined_ = pending_ = joined_pending_ = syncs_ = 0;
  drop_weights();
}

WeightUnit weight_unit_of(const StateDict& window) {
  // Windows of earlier versions have no unit.
  if (!window.contains("weight_unit")) return WeightUnit::micro_batch;
  const auto unit = window.get<std::int64_t>("weight_unit");
  if (unit < 0 || unit > static_cast<std::int64_t>(WeightUnit::mixed)) {
    throw CheckpointError("the saved window is damaged: its unit of weights is " + std::to_string(unit));
  }
  return static_cast<WeightUnit>(unit);
}

StateDict Window::state_dict() const {
  StateDict state;
  state.set("weighting", static_cast<std::int64_t>(weighting_));
  state.set("passes", passes_);
  state.set("joined", joined_);
  state.set("joined_pending", joined_pending_);
  state.set("pending", pending_);
  state.set("rounds", syncs_);
  state.set("weight", weight_);
  state.set("weight_unit", static_cast<std::int64_t>(weight_unit_));
  state.set("steps", steps_);
  state.set("last_length", lengths_.last);
  state.set("length_before", lengths_.before);
  return state;
}

void Window::load_state_dict(const StateDict& state) {
  const auto count = [&state](const std::string& name) {
    const auto value = state.get<std::int64_t>(name);
    if (value < 0) throw CheckpointError("the saved window is damaged: '" + name + "' is " + std::to_string(value));
    return value;
  };
  const std::int64_t weighting = count("weighting");
  if (weighting > static_cast<std::int64_t>(Weighting::weighted)) {
    throw CheckpointError("the saved window is damaged: its weighting is " + std::to_string(weighting));
  }
  Window loaded;
  loaded.weighting_ = static_cast<Weighting>(weighting);
  loaded.passes_ = count("passes");
  // Windows of earlier versions have no joined passes.
  if (state.contains("joined")) loaded.joined_ = count("joined");
  if (state.contains("joined_pending")) loaded.joined_pending_ = count("joined_pending");
  loaded.pending_ = count("pending");
  loaded.syncs_ = count("rounds");
  loaded.weight_ = state.get<double>("weight");
  loaded.weight_unit_ = weight_unit_of(state);
  loaded.steps_ = count("steps");
  loaded.lengths_ = {.last = count("last_length"), .before = count("length_before")};
  *this = loaded;
}

}  // namespace tutti
