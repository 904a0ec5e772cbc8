#pragma once
// Implementation of Reducer. Its methods are in reducer_impl.cpp (scopes and steps), reducer_pass.cpp,
// reducer_sync.cpp, reducer_state.cpp and reducer_checks.cpp. tutti/detail/sync/reducer.h documents the public ones.
//
// mutex_ serializes the thread of the loop and the threads of autograd. Hooks, callbacks and public methods lock it,
// except the one-line accessors. The other private methods must be called with it locked, except in_pass().
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "sync/accumulation_window_state.h"
#include "sync/gradient_store.h"
#include "sync/parameter_set.h"
#include "sync/replica_checker.h"
#include "sync/sync_decision.h"
#include "sync/sync_driver.h"
#include "tutti/comm/communicator.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/detail/sync/reducer.h"
#include "tutti/detail/sync/sync_scopes.h"

namespace tutti {

namespace sync {
class AutogradHooks;
}  // namespace sync

class Reducer::Impl {
 public:
  Impl(std::vector<NamedParameter> parameters, Communicator communicator, const ReducerOptions& options);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void enter_accumulate(const AccumulationStep& step);
  void leave_accumulate(bool unwinding);
  bool in_accumulate() const { return window_state_.scope().has_value(); }
  bool is_idle() const;
  void enter_no_sync();
  void leave_no_sync();
  void trigger_sync_in_backward();
  void add_scope_weight();
  void on_backward_error() noexcept;

  void set_local(bool local);
  bool local() const { return local_; }
  std::int64_t steps() const { return window_state_.window().steps(); }

  void set_check_replicas(bool check);
  bool at_window_end() const { return !window_state_.scope() || window_state_.scope()->syncs; }
  void synchronize();
  double mean_over_ranks(double value);
  void prepare_step();
  void set_loss_scale(double scale);
  bool overflowed() const { return driver_.overflowed(); }
  void on_optimizer_step();
  void clear(bool set_to_none);
  void discard_accumulation();

  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

  const std::vector<NamedParameter>& parameters() const { return parameters_.trained; }
  SyncStats stats() const;

 private:
  struct Pass {
    bool open = false;
    bool synchronizes = false;
    std::int64_t number = 0;
    std::set<int> tasks;  // graph tasks that have not ended; a nested backward pass has its own task
    std::thread::id thread;
    std::vector<int> order;  // parameters in the order of their gradients, while the order is learned
  };
  class GraphTaskCallback;
  class OuterPassHook;
  struct Handle;

  /// Runs an action of a backward pass. Passes an exception to ReducerOptions::pass_error before it propagates.
  template <typename Action>
  void in_pass(const Action& action) const;

  // Passes (reducer_pass.cpp).
  void before_accumulate_grad(int parameter);
  void on_gradient_ready(int parameter);
  void begin_pass();
  std::optional<std::string> carried_over_gradient() const {
    return window_state_.is_over() ? store_.tracked() : std::nullopt;
  }
  void begin_window_pass(const std::optional<std::string>& carried_over);
  void register_task();
  void register_outer_task();
  void on_task_end(int task);
  void on_task_error(int task) noexcept;
  void flush_pass();
  void finalize_backward();
  void close_dangling_pass();
  void abort_dangling_pass();

  // Synchronizations (reducer_sync.cpp).
  void open_sync();
  void start_ready_buckets();
  void close_sync();
  void run_sync();
  void finish_sync();
  void throw_if_failed(const sync::SyncResult& result);
  void finish_pending();
  void invalidate(const std::string& why);
  /// Runs an action. Its exceptions invalidate the gradients.
  template <typename Action>
  auto or_invalidate(const Action& action);

  void clear_gradients(sync::Clearing what, bool set_to_none);
  void discard_window();
  void throw_if_invalid() const;
  void throw_if_peer_failed() const;
  void check_before_step();
  void check_plan() const;
  void check_gradients_cleared(bool refuses_changes, bool begins_pass = false);
  void check_gradients_are_known() const;
  /// Whether a synchronization includes gradients that no backward pass has produced. In a scope, a tensor that replaced a used mean counts as that
  /// mean, so a synchronization of the other ranks must not change it.
  bool has_foreign_gradients() const {
    return !(window_state_.scope() && window_state_.is_over()) && store_.foreign(true).has_value();
  }
  /// Runs an action and adds the model prefix to its UsageErrors.
  template <typename Action>
  void with_model_prefix(const Action& action) const;
  void abort_refused_step();
  void send_abort() noexcept;
  /// Number of parameters with a slot; parameters with sparse gradients follow them.
  int count() const { return parameters_.slots; }

  Communicator communicator_;  // has this rank alone while local
  Communicator inactive_communicator_;
  bool local_ = false;
  ReducerOptions options_;
  Logger logger_;
  sync::ParameterSet parameters_;
  sync::ReplicaChecker checker_;
  sync::GradientStore store_;
  sync::SyncDriver driver_;

  mutable std::mutex mutex_;
  sync::AccumulationWindowState window_state_;
  sync::SyncDecision decision_;
  Pass pass_;
  std::vector<int> fires_;           // by slot: calls of the parameter's hook in this pass
  std::vector<int> expected_fires_;  // in the previous pass: more than one with reentrant checkpointing
  std::vector<int> waiting_;         // by bucket: gradients that are not ready in this pass
  SyncStats stats_;

  std::shared_ptr<Handle> handle_;
  std::unique_ptr<sync::AutogradHooks> hooks_;  // last member, so that hooks are detached first
};

template <typename Action>
void Reducer::Impl::with_model_prefix(const Action& action) const {
  try {
    action();
  } catch (const UsageError& error) {
    const std::string who = parameters_.model_prefix();
    const std::string what = error.what();
    // The message may name a parameter together with its model.
    if (who.empty() || what.find(who.substr(0, who.size() - 2)) != std::string::npos) throw;
    throw UsageError(who + what);
  }
}

template <typename Action>
auto Reducer::Impl::or_invalidate(const Action& action) {
  try {
    return action();
  } catch (const std::exception& error) {
    invalidate(error.what());
    throw;
  }
}

template <typename Action>
void Reducer::Impl::in_pass(const Action& action) const {
  try {
    action();
  } catch (...) {
    if (options_.pass_error) options_.pass_error(std::current_exception());
    throw;
  }
}

}  // namespace tutti
