#pragma once
// The Reducer: synchronizes the gradients of one optimizer's parameters.
//
// Hooks put every gradient into a flat buffer; in a backward pass that synchronizes, a bucket whose gradients are
// complete starts its reduction while backward goes on, and backward returns when .grad holds the mean. Which pass
// synchronizes is decided when it begins (SyncPolicy, scopes). A window is the run of passes between two steps.
//
// A round is one synchronization. Every rank takes part in the same rounds in the same order. Rounds start in a
// backward pass, or in synchronize(), prepare_step() or leave_accumulate() where the pass did not come to it.
//
// One backward pass at a time; all other methods on the thread that runs the loop. Errors that concern the group
// (MismatchError, PeerError, TimeoutError) come out of backward() or the methods below, on every rank that still runs;
// the window's gradients are then lost, and step refuses until the next pass or clear().
#include <cstdint>
#include <memory>
#include <vector>

#include "tutti/state/stateful.h"
#include "tutti/sync/named_parameter.h"
#include "tutti/sync/reducer_options.h"
#include "tutti/sync/sync_stats.h"

namespace tutti {

class Communicator;

struct AccumulationStep;

/// What stands below DistributedDataParallel and the Accelerator: use it to build a loop of another kind. One thread
/// calls it; hooks run on LibTorch's.
class Reducer final : public Stateful {
 public:
  /// Every rank must construct it with the same parameters (names, shapes, dtypes): MismatchError otherwise. Parameters
  /// that do not require gradients are watched only. `channel` is this reducer's own.
  Reducer(std::vector<NamedParameter> parameters, Communicator communicator, const ReducerOptions& options = {});
  ~Reducer() override;
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Scopes. leave_accumulate() completes the window's round if the scope's passes did not; while an exception
  // unwinds it waits for nobody, and tells those who wait for this rank.
  /// Opens a scope for one micro-batch; scopes of one reducer do not nest.
  void enter_accumulate(const AccumulationStep& step);
  /// Closes it. `unwinding`: an exception is why.
  void leave_accumulate(bool unwinding);
  /// Whether such a scope is open.
  bool in_accumulate() const;
  /// Whether no scope is open and no backward pass waits for its step.
  bool is_idle() const;
  /// Until leave_no_sync() backward passes keep gradients to this rank. They nest.
  void enter_no_sync();
  /// Ends what enter_no_sync() began.
  void leave_no_sync();
  /// The next backward pass synchronizes, whatever scope it is in.
  void trigger_sync_in_backward();
  /// A backward pass was called for in the open scope: it weighs, even if it reaches no parameter here.
  void add_scope_weight();
  /// A backward pass ended with an exception: tells the other ranks at once if they wait in this pass's round.
  void on_backward_error() noexcept;

  // Local steps (Local SGD): while local, windows end without communication, and the mean is that of this rank's own
  // micro-batches.
  /// Every rank must call it between the same steps, with no pass pending (UsageError). Gradients are cleared. Before
  /// coming back the ranks' parameters must have become equal again.
  void set_local(bool local);
  /// What set_local() was told last.
  bool local() const;
  /// Windows that a step has consumed so far, since the last set_local().
  std::int64_t steps() const;

  // Steps.
  /// Whether rounds compare parameters from now on (ReducerOptions::check_replicas is what they begin with): not while
  /// ranks without data stand by, which take no steps. Every rank must call it between the same steps.
  void set_check_replicas(bool check);
  /// Whether gradients may be used now: false inside an accumulate() scope that is not its window's last.
  bool at_window_end() const;
  /// Synchronizes what has not been: every rank must call it.
  void synchronize();
  /// The mean of `value` over the ranks that synchronize with this one. Every rank must call it, between passes.
  double mean_over_ranks(double value);
  /// To be called before gradients are read at the window's end: runs the round that is still missing. Throws
  /// UsageError naming the parameter when gradients cannot be vouched for.
  void prepare_step();
  /// What the loss of the next backward pass is multiplied by: gradients are divided by it when they are synchronized.
  /// The same on all ranks. It may change within a window.
  void set_loss_scale(double scale);
  /// Whether the window's gradients, as they were synchronized last, are not all finite: the same answer on all ranks.
  /// False unless ReducerOptions::detect_overflow is set.
  bool overflowed() const;
  /// The optimizer has stepped: the window is consumed.
  void on_optimizer_step();
  /// zero_grad(): outside accumulate() clears gradients and abandons pending passes. Inside, before the scope's first
  /// pass, it clears what a step has used and what a finished window left, and leaves the window that goes on; after a
  /// pass it clears the window and its weight where the scope is its last, and does nothing in an earlier one.
  void clear(bool set_to_none);
  /// Drops the window, gradients and weight, wherever it is. Every rank must call it at the same place.
  void discard_accumulation();

  // State: this rank's part of the window, pending gradients included. No rank communicates.
  /// Throws UsageError where there is no such state: inside a backward pass, between accumulate() and its backward
  /// pass, while a window's round has not been run, and after gradients were lost; also inside a window where
  /// micro-batches are kept apart (ReducerOptions::reproducible).
  StateDict state_dict() const override;
  /// What is in the window now is forgotten. For another number of ranks the
  /// Accelerator deals saved windows anew.
  void load_state_dict(const StateDict& state) override;

  /// What it synchronizes, in its own order.
  const std::vector<NamedParameter>& parameters() const;
  /// What it did and cost on this rank.
  SyncStats stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
