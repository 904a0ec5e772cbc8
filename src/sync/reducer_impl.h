#pragma once
// What a Reducer is made of. Its methods stand in reducer_impl.cpp (scopes and steps), reducer_pass.cpp,
// reducer_round.cpp, reducer_state.cpp and reducer_checks.cpp; what the public ones do is said in tutti/sync/reducer.h.
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "sync/sync_policy.h"
#include "sync/window_life.h"
#include "tutti/comm/communicator.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/sync/reducer.h"
#include "tutti/sync/sync_scopes.h"

namespace tutti {

namespace sync {
class AutogradHooks;
class GradientBuffer;
class ParameterWatch;
class PartialSums;
class Round;
class SparseGradients;
}  // namespace sync

class Reducer::Impl {
 public:
  Impl(std::vector<NamedParameter> parameters, Communicator channel, const ReducerOptions& options);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void enter_accumulate(const AccumulateStep& step);
  void leave_accumulate(bool unwinding);
  bool in_accumulate() const { return life_.scope().has_value(); }
  bool between_steps() const;
  void enter_no_sync();
  void leave_no_sync();
  void trigger_sync_in_backward();
  void count_backward();
  void backward_failed() noexcept;

  void set_local(bool local);
  bool local() const { return local_; }
  std::int64_t steps() const { return life_.window().steps(); }

  void set_check_replicas(bool check);
  bool at_window_end() const { return !life_.scope() || life_.scope()->syncs; }
  void synchronize();
  double mean_over_ranks(double value);
  void prepare_step();
  void set_loss_scale(double scale);
  bool overflowed() const { return overflowed_; }
  void stepped();
  void clear(bool set_to_none);
  void abandon_window();

  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  SyncStats stats() const;

 private:
  struct Pass {
    bool open = false;
    bool synchronizes = false;
    std::int64_t number = 0;
    std::set<int> tasks;  // graph tasks that have not ended: nested backward passes have their own
    std::thread::id thread;
    std::vector<int> order;  // parameters as their gradients came, while buckets are being tuned
  };
  struct ParameterState {
    int fires = 0;              // of its hook in this pass
    int expected_fires = 1;     // learned from the pass before: reentrant checkpointing fires more than once
    std::uint32_t version = 0;  // of the gradient when the last pass ended
    bool attached = false;      // its gradient was in its slot
    std::uint64_t hash = 0;     // of its gradient, while it waits for its round
  };
  struct BucketState {
    int waiting = 0;        // gradients that this pass has not brought yet
    bool averaged = false;  // holds the mean already, not this rank's share of a sum
    bool late = false;      // written to after it had left in the round under way
  };
  class PassToken;
  class OuterHook;
  struct Self;

  /// Runs what a backward pass calls: an error that leaves it goes through ReducerOptions::pass_error.
  template <typename Action>
  void in_pass(const Action& action) const;

  // Passes (reducer_pass.cpp).
  void before_accumulate(int parameter);
  void after_accumulate(int parameter);
  void begin_pass();
  std::optional<std::string> kept_gradient() const;
  void begin_on(const std::optional<std::string>& kept);
  void register_task();
  void register_outer_task();
  void task_ended(int task);
  void task_died(int task) noexcept;
  void flush_pass();
  void complete_pass();
  void close_dangling_pass();
  void abandon_dangling_pass();

  // Rounds (reducer_round.cpp).
  void open_round();
  void start_ready_buckets();
  void start_bucket(int bucket);
  void fill_bucket(int bucket);
  void start_all_buckets_and_close();
  void run_round();
  void finish_round();
  void judge_round();
  bool learns_order() const;
  void reorder_buckets(const sync::Round& round);
  void make_share(int bucket, double total_weight);
  void adopt(int parameter);
  void settle();
  void lose(const std::string& why);

  void load_bucket(int bucket, const StateDict& state);
  void clear_gradients(sync::Clearing what, bool set_to_none);
  void forget_window();
  void forget_gradients();
  void throw_if_lost() const;
  void throw_if_poisoned() const;
  void check_before_step();
  void check_plan() const;
  void watch_pending();
  void notice_vanished(bool refuses_changes, bool begins_pass = false);
  std::optional<std::string> touched_gradient() const;
  bool all_zero() const;
  void check_gradients_are_known() const;
  void check_parameters_unchanged(const std::vector<std::uint64_t>& now) const;
  /// The name of a parameter whose gradient came from no backward pass, or was put in the place of one that did;
  /// nullopt if none.
  std::optional<std::string> foreign_gradient(bool or_replaced = true) const;
  /// Whether a round is told of them. In a scope, what was put in the place of a used mean is one still, which a round
  /// of the others' must not touch.
  bool brings_foreign_gradients() const { return !(life_.scope() && life_.over()) && foreign_gradient().has_value(); }
  /// In front of errors that name no parameter; empty where models have no names.
  std::string whose() const;
  /// Runs what knows nothing of names, and says whose its errors are.
  template <typename Action>
  void named(const Action& action) const;
  void tell_refusal();
  void tell_abandoned() noexcept;
  void put_micro_batch_apart();
  void require_reproducible() const;
  void require_whole_block() const;
  /// Of parameters with a slot; those whose gradients are sparse come after them.
  int count() const { return static_cast<int>(states_.size()); }
  double share() const { return last_total_weight_ * loss_scale_ / channel_.size(); }

  Communicator channel_;  // of this rank alone while local
  Communicator other_channel_;
  bool local_ = false;
  ReducerOptions options_;
  Logger logger_;
  std::vector<NamedParameter> parameters_;  // those that have gradients, first those with a slot
  std::vector<NamedParameter> frozen_;
  std::unique_ptr<sync::ParameterWatch> watch_;
  std::unique_ptr<sync::ParameterWatch> frozen_watch_;
  std::unique_ptr<sync::GradientBuffer> buffer_;
  std::unique_ptr<sync::SparseGradients> sparse_;
  std::unique_ptr<sync::PartialSums> partial_;

  mutable std::mutex mutex_;
  sync::WindowLife life_;
  AutomaticPolicy automatic_;
  int no_sync_depth_ = 0;
  bool annotated_ = false;
  bool triggered_ = false;
  Pass pass_;
  std::vector<ParameterState> states_;
  std::vector<BucketState> buckets_;
  std::vector<std::uint64_t> hashes_;  // of the parameters when the window began
  int hash_salt_ = 0;                  // of the gradients' hashes
  std::unique_ptr<sync::Round> round_;
  double last_total_weight_ = 1;  // what averaged buckets were divided by, besides the loss scale
  double loss_scale_ = 1;         // of what is in the buckets that are not averaged
  bool overflowed_ = false;
  std::optional<std::string> refused_;  // why a step was refused whose round the others wait in
  bool owes_round_ = false;             // others wait in a round that this rank left by an exception
  double waited_ = 0;                   // in the last round
  int rounds_to_learn_order_ = 0;       // as long as it is not known in which order gradients come
  bool may_move_ = false;               // see RoundClosing
  SyncStats stats_;
  bool early_step_logged_ = false;

  std::shared_ptr<Self> self_;
  std::unique_ptr<sync::AutogradHooks> hooks_;  // last, so that it is detached first
};

template <typename Action>
void Reducer::Impl::named(const Action& action) const {
  try {
    action();
  } catch (const UsageError& error) {
    const std::string who = whose();
    const std::string what = error.what();
    // It may have named a parameter, and the model with it.
    if (who.empty() || what.find(who.substr(0, who.size() - 2)) != std::string::npos) throw;
    throw UsageError(who + what);
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
