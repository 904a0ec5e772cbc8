#include "sync/window_life.h"

#include <cmath>
#include <utility>

#include "tutti/core/error.h"

namespace tutti::sync {

void WindowLife::open_scope(const AccumulateStep& step) {
  if (step_) throw UsageError("accumulate() inside accumulate() over the same parameters: close the outer scope first");
  if (!std::isfinite(step.weight) || step.weight < 0) {
    throw UsageError("accumulate() with weight " + std::to_string(step.weight) + ": a weight is 0 or positive");
  }
  step_ = step;
  weighed_ = reached_ = stepped_ = false;
  due_ = step.syncs;
  first_ = true;
}

void WindowLife::close_scope() {
  if (!std::exchange(step_, std::nullopt)->syncs || is(Gradients::abandoned) || is(Gradients::lost)) return;
  // What came after a step of the scope is a window that ends with it; one that nobody has stepped in goes on.
  if (stepped_ && is(Gradients::mean)) gradients_ = Gradients::left;
  // Also weights of passes that brought nothing.
  if (over() || (stepped_ && is(Gradients::none))) window_.restart(false);
}

void WindowLife::begin_pass(const std::optional<std::string>& kept) {
  if (over()) {
    if (kept && step_ && !(step_->syncs && (stepped_ || is(Gradients::left)))) {
      throw UsageError("the gradient of " + *kept + " is still that of the last step: call optimizer.zero_grad() " +
                       (is(Gradients::left) ? "where no step is taken" : "after optimizer.step()"));
    }
    on_kept_ = kept.has_value();
  }
  if (step_) {
    window_.begin_weighted_pass();
    weigh();
    reached_ = true;
  } else {
    window_.begin_plain_pass();
  }
  // Until the pass has ended the gradients are what they were, but for a window that is over.
  if (over()) gradients_ = Gradients::none;
}

void WindowLife::weigh() {
  if (!step_ || std::exchange(weighed_, true)) return;
  window_.weigh(step_->weight);
}

void WindowLife::end_pass(bool synchronized) {
  if (synchronized) return;  // end_round() has said it
  window_.leave_pending();
  if (is(Gradients::none) || is(Gradients::mean)) gradients_ = Gradients::pending;
  // Under no_sync() after a pass of this scope that did synchronize.
  if (step_ && step_->syncs) due_ = true;
}

void WindowLife::abandon(const std::string& why) {
  if (is(Gradients::abandoned)) return;
  gradients_ = Gradients::abandoned;
  why_ = why;
}

bool WindowLife::round_due_at_step() const {
  if (step_) return due_;
  // An abandoned window's gradients are not used: the others only wait to be told.
  return window_.pending() > 0 || zeros_may_differ_ || is(Gradients::abandoned);
}

void WindowLife::begin_round(const std::optional<std::string>& kept) {
  // Whoever takes no part in it goes on as the others do, who began on the same.
  if (over()) on_kept_ = kept.has_value();
  // What is left of a window that is over weighs on this rank what its scope has weighed: nothing.
  if (step_ && over() && window_.weighting() == Weighting::undecided) window_.weigh(0);
}

void WindowLife::end_round(Weighting weighting, bool empty, bool all_over) {
  if (!empty && weighting == Weighting::weighted && window_.weighting() == Weighting::undecided) window_.weigh(0);
  window_.synchronized();
  zeros_may_differ_ = false;
  due_ = first_ = false;
  // What begin_round() weighed for the others' sake is no weight of the window that follows.
  if ((empty || all_over) && over()) window_.restart(false);
  // Also on a rank that took no part in it, the gradients are this window's now.
  if (!empty && !all_over) gradients_ = Gradients::mean;
}

void WindowLife::lose(const std::string& why) {
  gradients_ = Gradients::lost;
  why_ = why;
  due_ = false;
}

void WindowLife::restart(bool stepped) {
  window_.restart(stepped);
  on_kept_ = false;
  weighed_ = reached_ = false;
  // What the scope still brings is a window of its own.
  due_ = step_ && step_->syncs && (due_ || !first_);
}

void WindowLife::step() {
  restart(true);
  stepped_ = true;
  gradients_ = Gradients::used;
}

Clearing WindowLife::clearing() const {
  if (!step_ || is(Gradients::lost)) return Clearing::window;
  if (is(Gradients::abandoned)) return Clearing::nothing;
  if (over()) return Clearing::finished;
  if (reached_) return step_->syncs ? Clearing::window : Clearing::nothing;
  return window_.weighting() == Weighting::weighted ? Clearing::nothing : Clearing::window;
}

void WindowLife::cleared(Clearing what, bool in_place) {
  if (what == Clearing::nothing) return;
  zeros_may_differ_ = in_place && (zeros_may_differ_ || window_.pending() > 0);
  gradients_ = Gradients::none;
  if (what == Clearing::window) restart(false);
}

void WindowLife::vanished(bool in_place) {
  cleared(Clearing::window, in_place);
}

void WindowLife::forget() {
  restart(false);
  gradients_ = Gradients::none;
  zeros_may_differ_ = false;
}

void WindowLife::begin_anew() {
  forget();
  window_ = Window();
}

StateDict WindowLife::state_dict() const {
  StateDict state;
  state.set("window", window_.state_dict());
  state.set("consumed", is(Gradients::used));
  state.set("zeros_may_differ", zeros_may_differ_);
  if (is(Gradients::left)) state.set("left", true);
  return state;
}

void WindowLife::load_state_dict(const StateDict& state) {
  Window window;
  window.load_state_dict(state.part("window"));
  const auto consumed = state.get<bool>("consumed");
  const auto zeros_may_differ = state.get<bool>("zeros_may_differ");
  forget();
  window_ = window;
  zeros_may_differ_ = zeros_may_differ;
  const bool left = state.contains("left") && state.get<bool>("left");
  gradients_ = consumed               ? Gradients::used
               : left                 ? Gradients::left
               : window.pending() > 0 ? Gradients::pending
                                      : Gradients::mean;
}

}  // namespace tutti::sync
