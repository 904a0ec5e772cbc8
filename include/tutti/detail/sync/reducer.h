#pragma once
// The Reducer: synchronizes the gradients of one optimizer's parameters.
//
// Hooks copy every gradient into its slot of a flat buffer. In a backward pass that synchronizes, the all-reduce of a
// bucket starts as soon as its gradients are complete, while backward continues. backward() returns when .grad holds
// the mean. SyncPolicy and scopes decide at the start of a pass whether it synchronizes. A window (accumulation window)
// is the sequence of backward passes between two steps.
//
// Every rank runs the same synchronizations in the same order. A synchronization starts in a backward pass, or in
// synchronize(), prepare_step() or leave_accumulate() if no pass of the window started it.
//
// Thread safety: one backward pass at a time; one thread calls all other methods. Errors of the group (MismatchError,
// PeerError, TimeoutError) leave backward() or the methods below on every running rank. The gradients of the window are
// then invalid, and a step throws until the next backward pass or clear().
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tutti/detail/sync/named_parameter.h"
#include "tutti/state/stateful.h"
#include "tutti/sync/reducer_options.h"
#include "tutti/sync/sync_stats.h"

namespace tutti {

class Communicator;

struct AccumulationStep;

/// Receives a value that a step depends on: its name, the index of its parameter group (-1: of no group), the value.
using StepOptionSink = std::function<void(const char* name, std::int64_t group, double value)>;
/// Passes all values that a step depends on besides gradients to a sink, in the same order on all ranks.
using StepOptions = std::function<void(const StepOptionSink& sink)>;

/// The part of DistributedDataParallel and Accelerator that synchronizes gradients; use it for custom loops. One thread
/// calls its methods; hooks run on LibTorch's threads.
class Reducer final : public Stateful {
 public:
  /// Every rank must construct it with the same parameters (names, shapes, dtypes); throws MismatchError otherwise.
  /// Parameters that do not require gradients take part in the replica check only: see compare_also(). `communicator`
  /// must have no other user.
  Reducer(std::vector<NamedParameter> parameters, Communicator communicator, const ReducerOptions& options = {});
  ~Reducer() override;
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Scopes. leave_accumulate() runs the window's synchronization if no pass of the scope did. During unwinding it waits
  // for no rank, and notifies the ranks that wait for this one.
  /// Opens a scope for one micro-batch; scopes of one reducer do not nest.
  void enter_accumulate(const AccumulationStep& step);
  /// Closes the scope. `unwinding`: true if an exception closes it.
  void leave_accumulate(bool unwinding);
  /// Whether an accumulate() scope is open.
  bool in_accumulate() const;
  /// Number of windows so far whose last accumulate() scope was opened.
  std::int64_t ended_windows() const;
  /// Whether a backward pass waits for its step.
  bool has_unused_passes() const;
  /// Whether the window's last scope is open, or has closed without a step, and no pass in it reached a parameter.
  bool last_scope_has_no_pass() const;
  /// Backward passes keep gradients local until leave_no_sync(). Calls nest.
  void enter_no_sync();
  /// Ends the innermost enter_no_sync().
  void leave_no_sync();
  /// The next backward pass synchronizes in any scope.
  void trigger_sync_in_backward();
  /// Adds the weight of the open scope to the window, even if its backward pass reaches no parameter on this rank.
  void add_scope_weight();
  /// Must be called when a backward pass ends with an exception. Notifies the ranks that wait in its synchronization.
  void on_backward_error() noexcept;

  // Local steps (Local SGD): while local, windows end without communication, and the mean is over the micro-batches of
  // this rank.
  /// Every rank must call it between the same steps. Clears gradients. The parameters of all ranks must be equal again
  /// before set_local(false). Throws as require_between_steps() does.
  void set_local(bool local);
  /// Throws UsageError if a pass of an open window is pending.
  void require_between_steps();
  /// All later backward passes throw UsageError with this text.
  void refuse_passes(const std::string& why);
  /// Discards passes that no step has used, and their gradients. Throws UsageError, and changes nothing, in an
  /// accumulate() scope that has yet to synchronize. Does not communicate.
  void discard_unused_passes();
  /// The last argument of set_local().
  bool local() const;
  /// Windows that a step has consumed so far, on this rank.
  std::int64_t steps() const;
  /// Continues the count of another reducer, or that of another rank after local steps. Every rank must call it with
  /// the same number, between the same steps.
  void set_steps(std::int64_t steps);

  // Several optimizers for one model.
  /// Sets the reducers of all parts of a model, with this one. A backward pass that reaches a part also synchronizes
  /// the parts that it does not reach on this rank, because it may reach them on others. Every rank must call it with
  /// the same reducers in the same order, between backward passes.
  void set_parts(const std::vector<std::shared_ptr<Reducer>>& parts);

  // The comparison of ranks at every synchronization.
  /// Sets whether synchronizations compare the ranks; the initial value is ReducerOptions::check_replicas. Turn it off
  /// while ranks without data take no steps. Every rank must call it between the same steps.
  void set_check_replicas(bool check);
  /// Compares parameters whose gradients this reducer does not synchronize, besides its own without gradients. Every
  /// rank must call it with the same parameters, between the same steps.
  void compare_also(std::vector<NamedParameter> parameters);
  /// Sets what steps depend on. It is called when a synchronization begins, on the thread of its backward pass.
  void set_step_options(StepOptions options);
  /// Must be called after the gradients of the window were limited. `name` names the limit; it must be a literal.
  void note_clipping(const char* name, double limit);

  // Steps.
  /// Whether a step may use the gradients now: false inside an accumulate() scope that is not the last of its window.
  bool at_window_end() const;
  /// Must be called instead of prepare_step() while at_window_end() is false. Throws UsageError if the window's passes
  /// were outside of scopes, and none was in this one: the step that does nothing was meant for them.
  void check_left_out_step();
  /// Synchronizes the pending gradients. Every rank must call it.
  void synchronize();
  /// Returns the mean of `value` over the ranks of the communicator. Every rank must call it, between passes.
  double mean_over_ranks(double value);
  /// Must be called before gradients are read at the end of the window: runs the synchronization if it is missing.
  /// Throws UsageError, which names the parameter, if a gradient may not be the mean over ranks, and outside of scopes
  /// in a window whose last scope is still to come, unless synchronize() has been called there.
  void prepare_step();
  /// Warns on rank 0, once, if no scope is open and the window's last scope is still to come: the call acts, although
  /// it would not inside the scopes. `call` and `effect` are parts of the message.
  void warn_before_last_scope(const char* call, const char* effect);
  /// The factor on the loss of the next backward pass. Synchronization divides gradients by it. Must be equal on all
  /// ranks; it may change within a window.
  void set_loss_scale(double scale);
  /// Whether the last synchronized gradients of the window contain infinity or NaN. Equal on all ranks. False unless
  /// ReducerOptions::detect_overflow is set.
  bool overflowed() const;
  /// Must be called after the optimizer has stepped. Ends the window.
  void on_optimizer_step();
  /// zero_grad(). What it clears depends on the place of the call:
  /// - outside accumulate(): gradients and pending passes;
  /// - in a scope before its first pass: gradients that a step has used or that a finished window left. The open window
  ///   stays;
  /// - in a scope after a pass: the window and its weight if the scope is the last of the window, otherwise nothing.
  void clear(bool set_to_none);
  /// Discards the window with its gradients and weight, at any point. Every rank must call it at the same point.
  void discard_accumulation();

  // State: this rank's part of the window with its pending gradients. Ranks communicate to end an open pass only.
  /// Throws UsageError inside a backward pass, between accumulate() and its backward pass, while a synchronization of
  /// the window is due, while gradients are invalid, and inside a window of ReducerOptions::reproducible.
  StateDict state_dict() const override;
  /// Replaces the window. For another number of ranks the Accelerator re-shards the saved windows.
  void load_state_dict(const StateDict& state) override;

  /// The synchronized parameters, in the reducer's order.
  const std::vector<NamedParameter>& parameters() const;
  /// Counters and times of synchronization on this rank.
  SyncStats stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
