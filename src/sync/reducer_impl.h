#pragma once
// The wiring of Reducer: passes each event of the program and of autograd to the window's state machine and to the
// owner of what follows. tutti/detail/sync/reducer.h documents the methods.
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "sync/accumulation_window_state.h"
#include "sync/backward_tracker.h"
#include "sync/gradient_store.h"
#include "sync/parameter_set.h"
#include "sync/rank_comparison.h"
#include "sync/replica_checker.h"
#include "sync/sync_decision.h"
#include "sync/sync_driver.h"
#include "tutti/comm/communicator.h"
#include "tutti/detail/sync/reducer.h"
#include "tutti/detail/sync/sync_scopes.h"

namespace tutti {

class Reducer::Impl final : private sync::BackwardEvents {
 public:
  Impl(std::vector<NamedParameter> parameters, Communicator communicator, const ReducerOptions& options);
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

 private:
  friend class Reducer;
  using GradientState = sync::GradientState;

  // The public methods of Reducer that do more than one thing.
  void enter_accumulate(const AccumulationStep& step);
  void leave_accumulate(bool unwinding);
  void require_between_steps();
  void set_local(bool local);
  void discard_unused_passes();
  void synchronize();
  double mean_over_ranks(double value);
  void prepare_step();
  void warn_before_last_scope(const char* call, const char* effect);
  void set_loss_scale(double scale);
  void on_optimizer_step();
  void clear(bool set_to_none);
  void discard_accumulation();
  void set_check_replicas(bool check);
  void compare_also(std::vector<NamedParameter> parameters);
  StateDict state_dict();
  void load_state_dict(const StateDict& state);

  // BackwardEvents.
  void on_hooks_lost(int parameter) const override;
  void on_second_reducer(int parameter) const override;
  bool on_pass_begin() override;
  void on_concurrent_pass() override;
  void before_accumulate_grad(int parameter) override { driver_.prepare_write(parameter); }
  void on_gradient_ready(int parameter) override { store_.on_gradient(parameter); }
  void on_buckets_ready(std::size_t count) override;
  void on_all_gradients_ready() override { close_sync(); }
  void finalize_backward(sync::PassState state) override;
  void on_pass_failed(bool synchronized) noexcept override;
  std::pair<bool, bool> join_key() const override {
    return {window_state_.scope().has_value(), local_ && inactive_communicator_.size() > 1};
  }
  bool on_join() override;
  void on_joined_headers() override { close_sync_or_empty(); }
  void on_other_part_failed() noexcept override;

  // Synchronizations.
  /// `joins`: for a pass that has reached other parts of the model only.
  void open_sync(bool joins = false);
  void close_sync();
  /// For a synchronization without a pass: waits for the headers, and sends gradients if any rank has one.
  void close_sync_or_empty();
  void run_sync();
  void finish_sync();
  void throw_if_failed(const sync::SyncResult& result);
  /// The samples of parameters on devices that ranks compare.
  std::vector<sync::DeviceSamples*> samples();
  void close_dangling_pass();
  /// Ends an open pass that no callback ends, and a synchronization that this rank has aborted.
  void finish_pending();
  /// Must be called when an error ends the last scope of a window: the other ranks wait in its synchronization.
  void abort_scope(const std::string& why);
  /// The same for a step() or synchronize() that was refused.
  void abort_refused_call();
  /// Completes the synchronization in which the other ranks wait, without waiting for them.
  void send_abort() noexcept;
  void invalidate(const std::string& why);
  /// Runs an action. Its exceptions invalidate the gradients.
  template <typename Action>
  auto or_invalidate(const Action& action);
  void clear_gradients(sync::Clearing what, bool set_to_none);
  void discard_window();

  /// Counts a pass that has reached other parts of the model only. Returns whether it synchronizes.
  bool count_joined_pass();

  // Checks.
  bool is(GradientState state) const { return window_state_.is(state); }
  /// Whether gradients of passes wait for a synchronization.
  bool is_pending() const { return window_state_.window().pending() > 0; }
  /// The name of a parameter that still has its gradient of an ended window; nullopt if none. Zeros that would be
  /// refused count as cleared: the zero_grad(false) of the module leaves them.
  std::optional<std::string> carried_over() const {
    auto left = window_state_.is_over() ? store_.tracked() : std::nullopt;
    if (left && window_state_.refuses_carried_over() && store_.all_zero()) left.reset();
    return left;
  }
  /// Whether this rank has something to synchronize. In a scope, a tensor that replaced a used mean counts as that
  /// mean, so a synchronization of the other ranks must not change it.
  bool has_gradients() const {
    return window_state_.window().passes() > 0 || (window_state_.zeros_may_differ() && store_.tracked()) ||
           (!(window_state_.scope() && window_state_.is_over()) && store_.foreign(true).has_value());
  }
  void throw_if_invalid() const;
  void throw_if_communicator_failed() const;
  void check_before_step();
  void check_left_out_step();
  void check_plan() const;
  /// Detects that the program has cleared or changed the window's gradients. If all are cleared, their weights are
  /// dropped too. Any other change has no defined mean.
  void check_gradients_cleared(bool refuses_changes, bool begins_pass = false);

  // Serializes the thread of the loop and the threads of autograd. The public methods of Reducer lock it, except
  // accessors of values that only the calling thread changes. The hooks and callbacks of BackwardTracker lock it too.
  // All methods of this class must be called with it locked.
  std::mutex mutex_;
  Communicator communicator_;  // has this rank alone while local
  Communicator inactive_communicator_;
  bool local_ = false;
  std::int64_t ended_windows_ = 0;  // windows whose last accumulate() scope was opened
  ReducerOptions options_;
  const sync::ParameterSet parameters_;
  sync::AccumulationWindowState window_state_;
  sync::SyncDecision decision_;
  sync::ReplicaChecker checker_;
  sync::RankComparison comparison_;
  sync::GradientStore store_;
  sync::SyncDriver driver_;
  SyncStats stats_;
  sync::BackwardTracker tracker_;  // last member, so that hooks are detached first
};

}  // namespace tutti
