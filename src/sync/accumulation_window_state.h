#pragma once
// The rule of a window's life: what opens it, what a scope weighs, what a step and a clearing end. Pure: events in,
// decisions out; the Reducer does what they say to tensors and on the wire. docs/algorithms.md has the table.
#include <cstdint>
#include <optional>
#include <string>

#include "sync/window.h"
#include "tutti/sync/sync_scopes.h"

namespace tutti::sync {

/// What the gradients are, on this rank.
enum class GradientState {
  none,      ///< nothing that a pass brought
  pending,   ///< passes of this rank that no round has taken up
  mean,      ///< the mean over all ranks of the window so far
  finished,  ///< the same, of passes that came after the last step of a window's last scope, which has closed
  consumed,  ///< the mean that a step has used
  aborted,   ///< an exception ended a pass of the window: they mean nothing, and the others may not know yet
  invalid,   ///< a round has failed: they mean nothing on any rank
};

/// What zero_grad() clears.
enum class Clearing {
  nothing,
  finished,  ///< what a step has used, or a finished window has left; weights of the window that goes on stay
  window,    ///< everything, weights included
};

class AccumulationWindowState {
 public:
  GradientState gradients() const { return gradients_; }
  const Window& window() const { return window_; }
  const std::optional<AccumulationStep>& scope() const { return scope_; }
  /// Why the gradients are abandoned or lost.
  const std::string& reason() const { return reason_; }
  bool is(GradientState which) const { return gradients_ == which; }
  /// Whether gradients are those of a window that is over.
  bool is_over() const { return is(GradientState::consumed) || is(GradientState::finished); }
  /// Whether no pass waits for its step.
  bool is_idle() const { return is_over() ? is(GradientState::consumed) : window_.passes() == 0; }

  /// Throws UsageError where a scope is open.
  void open_scope(const AccumulationStep& step);
  /// Whether the scope that closes owes a round.
  bool sync_due_at_close() const { return scope_ && sync_due_ && (before_first_sync_ || weight_added_); }
  void close_scope();
  /// Whether all that the open scope has brought so far is known: it could be saved.
  bool can_be_saved() const { return before_first_sync_ ? weight_added_ && !sync_due_ : !(weight_added_ && sync_due_); }

  /// A backward pass begins. `kept`: the name of a parameter whose gradient is there still from a window that is over.
  /// Throws UsageError where passes inside and outside of scopes would mix, or a mean over old and new gradients would
  /// mean nothing.
  void begin_pass(const std::optional<std::string>& carried_over);
  /// A backward pass was called for: the open scope weighs, even if the pass reaches nothing here.
  void add_scope_weight();
  void end_pass(bool synchronized);
  /// An exception ended a pass, or left the scope.
  void abort(const std::string& why);

  /// Whether a step must run a round first. `in_place`: see zeros_may_differ().
  bool sync_due_at_step() const;
  /// A round begins: also a scope whose passes did not come here takes part in its window.
  /// `kept` as in begin_pass().
  void begin_sync(const std::optional<std::string>& carried_over);
  /// `weighting`: of all ranks. `empty`: no rank had anything. `all_over`: none had more than what is left of a window
  /// that is over.
  void end_sync(Weighting weighting, bool empty, bool all_over);
  /// Whether a round has been run since the scope was opened.
  bool synced_in_scope() const { return scope_ && !before_first_sync_; }
  void invalidate(const std::string& why);

  void step();
  /// What zero_grad() clears now.
  Clearing clearing() const;
  /// Whether zero_grad() runs the scope's round first: the others wait for it.
  bool sync_due_at_clear() const { return scope_ && sync_due_ && pass_seen_ && is(GradientState::pending); }
  /// `in_place`: gradients that were there are zeros now.
  void on_clear(Clearing what, bool in_place);
  /// The window's gradients vanished behind tutti's back: their weights go with them.
  void on_external_clear(bool in_place);
  /// Nothing is left of the window, nor of an error in it.
  void discard();
  /// The same, and what came before is not counted.
  void reset();

  /// What is there from a window that is over counts as often as this rank's part of the new one weighs, so that the
  /// mean of it is what it was.
  double carried_over_weight() const { return window_.weighting() == Weighting::weighted ? window_.weight() : 1; }
  /// Whether the window under way in a round began on gradients of one that was over.
  bool began_on_carried_over() const { return began_on_carried_over_; }
  /// Pending gradients were cleared in place: ranks may have zeros for different parameters.
  bool zeros_may_differ() const { return zeros_may_differ_; }

  StateDict state_dict() const;
  /// Throws CheckpointError, and changes nothing, for a state that no window can be in.
  void load_state_dict(const StateDict& state);

 private:
  void restart(bool stepped);

  Window window_;
  GradientState gradients_ = GradientState::none;
  std::string reason_;
  bool zeros_may_differ_ = false;
  bool began_on_carried_over_ = false;
  // Of the open scope.
  std::optional<AccumulationStep> scope_;
  bool weight_added_ = false;      // its weight is in the window
  bool pass_seen_ = false;         // a pass of it has come here since the window began
  bool sync_due_ = false;          // it owes the window's round
  bool before_first_sync_ = true;  // no round has been run in it yet
  bool stepped_in_scope_ = false;  // in it
};

}  // namespace tutti::sync
