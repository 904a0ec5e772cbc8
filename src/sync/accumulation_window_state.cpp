#include "sync/accumulation_window_state.h"

#include <cmath>
#include <utility>

#include "tutti/core/error.h"

namespace tutti::sync {

void AccumulationWindowState::open_scope(const AccumulationStep& step) {
  if (scope_)
    throw UsageError("accumulate() inside accumulate() over the same parameters: close the outer scope first");
  if (!std::isfinite(step.weight) || step.weight < 0) {
    throw UsageError("accumulate() with weight " + std::to_string(step.weight) + ": a weight is 0 or positive");
  }
  scope_ = step;
  weight_added_ = pass_seen_ = scope_has_pass_ = stepped_in_scope_ = false;
  counted_passes_ = 0;
  sync_due_ = step.syncs;
  before_first_sync_ = true;
}

void AccumulationWindowState::close_scope() {
  add_due_weight();
  const bool had_pass = scope_has_pass();
  const bool is_last = std::exchange(scope_, std::nullopt)->syncs;
  if (is(GradientState::aborted) || is(GradientState::invalid)) return;
  if (!is_last) {
    if (latest_scope_ == LatestScope::none)
      latest_scope_ = had_pass ? LatestScope::not_last : LatestScope::without_pass;
    return;
  }
  // Passes after a step in the scope form a window that ends with the scope. A window without a step stays open.
  if (stepped_in_scope_ && is(GradientState::mean)) gradients_ = GradientState::finished;
  // Without gradients on any rank there is no window, and the weights of the scope's passes over other models are
  // dropped.
  if (is_over() || is(GradientState::none)) window_.restart(false);
  latest_scope_ = LatestScope::last;
}

void AccumulationWindowState::allow_early_step() {
  if (awaits_last_scope()) latest_scope_ = LatestScope::none;
}

bool AccumulationWindowState::leaves_out_passes() const {
  const bool has_plain_passes = window_.weighting() == Weighting::plain && window_.passes() > 0;
  return has_plain_passes && scope_ && !scope_->syncs && !scope_has_pass();
}

void AccumulationWindowState::begin_pass(const std::optional<std::string>& carried_over) {
  if (is_over()) {
    if (carried_over && refuses_carried_over()) {
      throw UsageError("the gradient of " + *carried_over +
                       " is still that of the last step: call optimizer.zero_grad() " +
                       (is(GradientState::finished) ? "where no step is taken" : "after optimizer.step()"));
    }
    began_on_carried_over_ = carried_over.has_value();
  }
  if (scope_ || latest_scope_ != LatestScope::without_pass) latest_scope_ = LatestScope::none;
  if (scope_) {
    window_.begin_weighted_pass();
    add_scope_weight();
    pass_seen_ = scope_has_pass_ = true;
    if (scope_->passes) ++*scope_->passes;
  } else {
    drop_weights_of_others();
    window_.begin_plain_pass();
  }
  // The state changes when the pass ends, except after an ended window.
  if (is_over()) gradients_ = GradientState::none;
}

void AccumulationWindowState::join_pass() {
  window_.join_pass();
  // The part that the pass has reached has counted it, perhaps before this part's window began.
  if (passes_in_scope() > 0 && window_.weighting() != Weighting::plain) add_scope_weight();
}

void AccumulationWindowState::end_joined_pass() {
  window_.add_joined_pending();
  if (scope_ && scope_->syncs) sync_due_ = true;  // as in end_pass()
}

void AccumulationWindowState::drop_weights_of_others() {
  const bool has_pass = window_.passes() > 0 || !(is_over() || is(GradientState::none));
  if (!has_pass && window_.weighting() == Weighting::weighted) window_.drop_weights();
}

void AccumulationWindowState::add_scope_weight() {
  if (!scope_ || std::exchange(weight_added_, true)) return;
  scope_has_pass_ = true;
  window_.add_weight(scope_->weight, scope_->of_split_batch ? WeightUnit::split_batch_part : WeightUnit::micro_batch);
  if (scope_->syncs && is(GradientState::mean)) {
    // A synchronization before the scope's first pass has computed a mean without this weight. zero_grad() may still
    // clear a window whose last scope has closed without a step.
    sync_due_ = true;
  } else {
    latest_scope_ = LatestScope::none;
  }
}

void AccumulationWindowState::add_due_weight() {
  if (is_weight_due()) add_scope_weight();
}

void AccumulationWindowState::end_pass(bool synchronized) {
  if (synchronized) return;  // end_sync() has set the state
  window_.add_pending();
  if (is(GradientState::none) || is(GradientState::mean)) gradients_ = GradientState::pending;
  // A pass under no_sync() after a synchronizing pass of the same scope.
  if (scope_ && scope_->syncs) sync_due_ = true;
}

void AccumulationWindowState::abort(const std::string& why) {
  if (is(GradientState::aborted)) return;
  gradients_ = GradientState::aborted;
  reason_ = why;
}

bool AccumulationWindowState::sync_due_at_step() const {
  if (scope_) return sync_due_;
  // The gradients of an aborted window are not used, but the peers wait for the notification.
  return window_.awaits_sync() || zeros_may_differ_ || is(GradientState::aborted);
}

void AccumulationWindowState::begin_sync(const std::optional<std::string>& carried_over) {
  add_due_weight();
  // A rank without a pass in the window continues like the other ranks, which began with the same gradients.
  if (is_over()) began_on_carried_over_ = carried_over.has_value();
}

void AccumulationWindowState::end_sync(Weighting weighting, bool empty, bool all_over, bool in_pass) {
  if (!empty) window_.adopt(weighting);
  // The last scope was that of the window before, and this rank has had no pass since.
  const bool is_first = !empty && window_.passes() == 0 && window_.syncs() == 0;
  const bool in_plain_pass = in_pass && !scope_ && latest_scope_ != LatestScope::without_pass;
  if ((is_first && latest_scope_ == LatestScope::last) || in_plain_pass) latest_scope_ = LatestScope::none;
  empty ? window_.clear_joined_pending() : window_.on_sync();
  zeros_may_differ_ = false;
  sync_due_ = before_first_sync_ = false;
  if (is_over() && all_over && !empty) {
    // The next window has the open scope's weight.
    window_.restart(false);
    if (std::exchange(weight_added_, false)) add_scope_weight();
  }
  if (scope_ && in_pass) pass_seen_ = true;
  // The gradients belong to this window also on a rank that had no pass in it.
  if (!empty && !all_over) gradients_ = GradientState::mean;
}

void AccumulationWindowState::end_unreached_sync() {
  if (!scope_ && window_.weighting() != Weighting::weighted) window_.clear_joined_pending();
}

void AccumulationWindowState::invalidate(const std::string& why) {
  gradients_ = GradientState::invalid;
  reason_ = why;
  sync_due_ = false;
}

void AccumulationWindowState::restart(bool stepped) {
  window_.restart(stepped);
  began_on_carried_over_ = false;
  latest_scope_ = LatestScope::none;
  counted_passes_ = passes_in_scope();
  weight_added_ = pass_seen_ = false;
  // Further passes of the scope form a new window.
  sync_due_ = scope_ && scope_->syncs && (sync_due_ || !before_first_sync_);
}

void AccumulationWindowState::step() {
  restart(true);
  stepped_in_scope_ = true;
  gradients_ = GradientState::consumed;
}

Clearing AccumulationWindowState::clearing() const {
  if (!scope_ || is(GradientState::invalid)) return Clearing::window;
  if (is(GradientState::aborted)) return Clearing::nothing;
  if (is_over()) return Clearing::finished;
  if (pass_seen_) return scope_->syncs ? Clearing::window : Clearing::nothing;
  if (latest_scope_ == LatestScope::last) return Clearing::window;
  return window_.weighting() == Weighting::weighted ? Clearing::nothing : Clearing::window;
}

void AccumulationWindowState::on_clear(Clearing what, bool in_place) {
  if (what == Clearing::nothing) return;
  began_on_carried_over_ = false;
  zeros_may_differ_ = in_place && (zeros_may_differ_ || window_.awaits_sync());
  gradients_ = GradientState::none;
  if (what == Clearing::window) restart(false);
}

void AccumulationWindowState::discard() {
  restart(false);
  gradients_ = GradientState::none;
  zeros_may_differ_ = false;
}

void AccumulationWindowState::reset() {
  discard();
  window_ = Window();
}

StateDict AccumulationWindowState::state_dict() const {
  AccumulationWindowState closed = *this;
  if (scope_) closed.close_scope();
  StateDict state;
  state.set("window", closed.window_.state_dict());
  state.set("consumed", closed.is(GradientState::consumed));
  state.set("zeros_may_differ", zeros_may_differ_);
  if (closed.is(GradientState::finished)) state.set("left", true);
  if (closed.began_on_carried_over_) state.set("began_on_carried_over", true);
  if (closed.latest_scope_ == LatestScope::last) state.set("last_scope_closed", true);
  return state;
}

void AccumulationWindowState::load_state_dict(const StateDict& state) {
  Window window;
  window.load_state_dict(state.part("window"));
  const auto consumed = state.get<bool>("consumed");
  const auto zeros_may_differ = state.get<bool>("zeros_may_differ");
  discard();
  window_ = window;
  zeros_may_differ_ = zeros_may_differ;
  const auto is_set = [&state](const char* name) { return state.contains(name) && state.get<bool>(name); };
  const bool left = is_set("left");
  if (is_set("last_scope_closed")) latest_scope_ = LatestScope::last;
  began_on_carried_over_ = is_set("began_on_carried_over");
  const bool has_none = window.passes() == 0 && window.syncs() == 0;
  gradients_ = consumed               ? GradientState::consumed
               : left                 ? GradientState::finished
               : window.pending() > 0 ? GradientState::pending
               : has_none             ? GradientState::none
                                      : GradientState::mean;
}

}  // namespace tutti::sync
