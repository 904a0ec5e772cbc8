#pragma once
// State machine of an accumulation window: which events open it, add a scope's weight to it and end it. No I/O: the
// Reducer passes events and applies the decisions to tensors and communication. docs/algorithms.md has the table.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "sync/window.h"
#include "tutti/detail/sync/sync_scopes.h"

namespace tutti::sync {

/// The state of the gradients on this rank.
enum class GradientState {
  none,      ///< no gradient from a pass
  pending,   ///< gradients of passes that are not synchronized
  mean,      ///< the mean over all ranks of the window so far
  finished,  ///< the mean of passes after the last step in a window's last scope, which has closed
  consumed,  ///< the mean that a step has used
  aborted,   ///< an exception ended a pass of the window: invalid here, and peers may not be notified yet
  invalid,   ///< a synchronization has failed: invalid on all ranks
};

/// What zero_grad() clears.
enum class Clearing {
  nothing,
  finished,  ///< gradients that a step has used or a finished window has left; weights of the open window stay
  window,    ///< all gradients and weights
};

/// The scope of the window that has closed last, unless a pass or the window's end has followed.
enum class LatestScope {
  none,
  not_last,  ///< the window's last scope is still to come
  /// The same, and no pass has run in the scope, so that a pass after it was meant for it.
  without_pass,
  last,  ///< the window's last scope, in which no step ran
};

class AccumulationWindowState {
 public:
  GradientState gradients() const { return gradients_; }
  const Window& window() const { return window_; }
  const std::optional<AccumulationStep>& scope() const { return scope_; }
  /// Why the gradients are aborted or invalid.
  const std::string& reason() const { return reason_; }
  bool is(GradientState which) const { return gradients_ == which; }
  /// Whether the gradients belong to a window that has ended.
  bool is_over() const { return is(GradientState::consumed) || is(GradientState::finished); }
  /// Whether no pass is waiting for its step.
  bool is_idle() const { return is_over() ? is(GradientState::consumed) : window_.passes() == 0; }

  /// Throws UsageError if a scope is open.
  void open_scope(const AccumulationStep& step);
  /// Whether closing the scope must run a synchronization.
  bool sync_due_at_close() const {
    return scope_ && sync_due_ && (before_first_sync_ || weight_added_ || is_weight_due());
  }
  void close_scope();
  /// Whether the contribution of the open scope is complete, so that it can be saved.
  bool can_be_saved() const {
    return before_first_sync_ ? (weight_added_ || is_weight_due()) && !sync_due_
                              : !(sync_due_ && (pass_seen_ || is(GradientState::mean)));
  }

  /// Whether a pass must not begin on gradients of an ended window other than zeros.
  bool refuses_carried_over() const {
    return is_over() && scope_ && !(scope_->syncs && (stepped_in_scope_ || is(GradientState::finished)));
  }
  /// A backward pass begins. `carried_over`: the name of a parameter that still has its gradient of an ended window.
  /// Throws UsageError if passes inside and outside of scopes would mix, or if a mean over old and new gradients is
  /// undefined.
  void begin_pass(const std::optional<std::string>& carried_over);
  /// A backward pass has reached other parts of the model only. In a scope it counts the scope's weight.
  void join_pass();
  /// Such a pass does not synchronize.
  void end_joined_pass();
  /// Whether a synchronization of a pass that has reached other parts of the model only, on all ranks, may be left out:
  /// no gradients wait for it, or a later call of a scope runs it on all ranks.
  bool may_leave_out_sync() const {
    return scope_ || window_.weighting() == Weighting::weighted || !(window_.pending() > 0 || zeros_may_differ_);
  }
  /// Whether no scope is open and the window's last scope is still to come, so that the window is incomplete.
  bool awaits_last_scope() const {
    return !scope_ && (latest_scope_ == LatestScope::not_last || latest_scope_ == LatestScope::without_pass);
  }
  /// Whether the window's last scope is open, or has closed without a step, and no pass in it reached a parameter.
  bool last_scope_has_no_pass() const {
    return !pass_seen_ && (scope_ ? scope_->syncs : latest_scope_ == LatestScope::last);
  }
  /// Whether the window has passes outside of scopes only, and the open scope, which does not end its window, has none.
  /// A step, which does nothing in this scope, was meant for them.
  bool leaves_out_passes() const;
  /// True for the first call of the program in an incomplete window.
  bool first_early_call() { return awaits_last_scope() && !std::exchange(called_early_, true); }
  /// The program has synchronized the incomplete window, so a step may use it.
  void allow_early_step();
  /// Adds the weight of the open scope, even if its backward pass reaches no parameter on this rank.
  void add_scope_weight();
  /// Does so if a pass has reached other reducers of the open scope only. Call before clearing() and sync_due_...().
  void add_due_weight();
  void end_pass(bool synchronized);
  /// An exception ended a pass, or left the scope.
  void abort(const std::string& why);

  /// Whether a step must run a synchronization first.
  bool sync_due_at_step() const;
  /// A synchronization begins. A scope whose passes reached no parameter here takes part too. `carried_over`: as in
  /// begin_pass().
  void begin_sync(const std::optional<std::string>& carried_over);
  /// The headers of all ranks are here, of which one or more have gradients. Call where this rank has none: its
  /// gradients of an ended window have the weight that `weighting`, of all ranks, gives to it.
  void on_headers(Weighting weighting) { window_.adopt(weighting); }
  /// `weighting`: of all ranks. `empty`: no rank had a gradient. `all_over`: all gradients belonged to an ended window.
  /// `in_pass`: a pass of any rank that has reached the parameters began it.
  void end_sync(Weighting weighting, bool empty, bool all_over, bool in_pass = false);
  /// The same if the synchronization's pass has reached other parts of the model only: nothing was synchronized.
  void end_unreached_sync();
  /// Whether a synchronization has run since the scope was opened.
  bool synced_in_scope() const { return scope_ && !before_first_sync_; }
  void invalidate(const std::string& why);

  void step();
  /// What zero_grad() clears now.
  Clearing clearing() const;
  /// Whether zero_grad() must run the scope's synchronization first, because the other ranks wait in it.
  bool sync_due_at_clear() const { return scope_ && sync_due_ && pass_seen_ && is(GradientState::pending); }
  /// `in_place`: gradients were set to zero, not released. See zeros_may_differ().
  void on_clear(Clearing what, bool in_place);
  /// Discards the window and an error in it.
  void discard();
  /// Like discard(); also resets the counters.
  void reset();
  /// Sets the number of windows that a step has consumed.
  void set_steps(std::int64_t steps) { window_.set_steps(steps); }

  /// The weight of gradients of an ended window: the weight of this rank's part of the new window, so that their mean
  /// does not change.
  double carried_over_weight() const { return window_.weighting() == Weighting::weighted ? window_.weight() : 1; }
  /// Whether the window in synchronization began with gradients of an ended window.
  bool began_on_carried_over() const { return began_on_carried_over_; }
  /// Whether pending gradients were cleared in place, so that ranks may have zeros for different parameters.
  bool zeros_may_differ() const { return zeros_may_differ_; }

  /// A scope that is open counts as closed.
  StateDict state_dict() const;
  /// Throws CheckpointError, and changes nothing, if the state is not valid.
  void load_state_dict(const StateDict& state);

 private:
  void restart(bool stepped);
  /// Drops the weights of scopes whose passes reached other models only.
  void drop_weights_of_others();
  /// Whether a pass in the open scope has reached other reducers only since this one's window began.
  bool is_weight_due() const {
    return !weight_added_ && passes_in_scope() > counted_passes_ && window_.weighting() != Weighting::plain;
  }
  /// Whether a pass in the open scope has reached this or another reducer of it.
  bool scope_has_pass() const { return scope_has_pass_ || passes_in_scope() > 0; }
  /// Passes over any reducer of the open scope; 0 if this reducer is alone.
  std::int64_t passes_in_scope() const { return scope_ && scope_->passes ? scope_->passes->load() : 0; }

  Window window_;
  GradientState gradients_ = GradientState::none;
  std::string reason_;
  LatestScope latest_scope_ = LatestScope::none;
  bool called_early_ = false;
  bool zeros_may_differ_ = false;
  bool began_on_carried_over_ = false;
  // Of the open scope.
  std::optional<AccumulationStep> scope_;
  bool weight_added_ = false;        // its weight is in the window
  std::int64_t counted_passes_ = 0;  // passes_in_scope() when the window began
  bool pass_seen_ = false;           // a pass in it reached a parameter since the window began
  bool sync_due_ = false;            // it must run the window's synchronization
  bool before_first_sync_ = true;    // no synchronization has run in it
  bool stepped_in_scope_ = false;    // an optimizer stepped in it
  bool scope_has_pass_ = false;      // a pass in it reached a parameter, or its weight was added
};

}  // namespace tutti::sync
