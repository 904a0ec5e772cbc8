#pragma once
// The Reducer: synchronizes the gradients of one optimizer's parameters.
//
// Hooks put every gradient into a flat buffer; in a backward pass that synchronizes, a bucket whose gradients are
// complete starts its reduction while backward goes on, and backward returns when .grad holds the mean. Which pass
// synchronizes is decided when it begins (sync_policy.h); who divides, by the window (window.h).
//
// A round is one synchronization. Every rank takes part in the same rounds in the same order. Rounds start in a
// backward pass, or in synchronize(), prepare_step() or leave_accumulate() where the pass did not come to it.
//
// One backward pass at a time; all other methods on the thread that runs the loop. Errors that concern the group
// (Divergence, PeerFailure, Timeout) come out of backward() or the methods below, on every rank that still runs; the
// window's gradients are then lost, and step refuses until the next pass or clear().
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/comm/wire_codec.h"
#include "tutti/core/logging.h"
#include "tutti/state/stateful.h"
#include "tutti/sync/bucket_plan.h"
#include "tutti/sync/named_parameter.h"
#include "tutti/sync/sync_policy.h"
#include "tutti/sync/sync_stats.h"
#include "tutti/sync/window.h"

namespace tutti {

namespace sync {
class AutogradHooks;
class BucketTuner;
class GradientBuffer;
class ParameterWatch;
class PartialSums;
class Round;
class SparseGradients;
}  // namespace sync

struct ReducerOptions {
  BucketOptions buckets{};
  SyncPolicy policy = SyncPolicy::every_pass;
  /// Compare a sampled hash of the parameters in every round. Turn it off where replicas may differ in their last bits
  /// (machines of different kinds).
  bool check_replicas = true;
  /// How fp32 gradients travel between nodes, for example bf16_codec(); null: as they are. Sparse ones travel as they
  /// are.
  std::shared_ptr<const WireCodec> comm_hook{};
  /// Look for infinity and NaN in synchronized gradients: overflowed() tells.
  bool detect_overflow = false;
  /// Add micro-batches (accumulate() scopes) in an order that does not depend on how they are dealt to ranks, so that
  /// the bits of the mean do not either: rank r must run the r-th block of the window's micro-batches, and on several
  /// ranks blocks must hold 2^n of them. Passes never synchronize: clipping, step() or the scope's end does, so until
  /// then .grad is that of the scope alone. Needs float or double parameters without comm_hook, dense gradients, and
  /// accumulate() around every pass: UsageError otherwise.
  bool reproducible = false;
  /// Called when a backward pass begins, on the thread that it runs on; what it throws ends the pass.
  std::function<void()> before_pass{};
};

/// One accumulate() scope as a reducer sees it.
struct AccumulateStep {
  double weight = 1;             ///< of the scope's micro-batch
  bool syncs = true;             ///< it is its window's last
  bool sync_each_batch = false;  ///< synchronize although it is not
};

class Reducer final : public Stateful {
 public:
  /// Every rank must construct it with the same parameters (names, shapes, dtypes): Divergence otherwise. Parameters
  /// that do not require gradients are watched only. `channel` is this reducer's own.
  Reducer(std::vector<NamedParameter> parameters, Communicator channel, const ReducerOptions& options = {});
  ~Reducer() override;
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Scopes. leave_accumulate() completes the window's round if the scope's passes did not; nothing communicates while
  // an exception unwinds.
  void enter_accumulate(const AccumulateStep& step);
  void leave_accumulate(bool unwinding);
  bool in_accumulate() const { return scope_.has_value(); }
  /// Whether no scope is open and no backward pass waits for its step.
  bool between_steps() const;
  void enter_no_sync();
  void leave_no_sync();
  /// The next backward pass synchronizes, whatever scope it is in.
  void trigger_sync_in_backward();
  /// A backward pass was called for in the open scope: it weighs, even if it reaches no parameter here.
  void count_backward();
  /// A backward pass ended with an exception: tells the other ranks at once if they wait in this pass's round.
  void backward_failed() noexcept;

  // Local steps (Local SGD): while local, windows end without communication, and the mean is that of this rank's own
  // micro-batches.
  /// Every rank must call it between the same steps, with no pass pending (UsageError). Gradients are cleared. Before
  /// coming back the ranks' parameters must have become equal again.
  void set_local(bool local);
  bool local() const { return local_; }
  /// Windows that a step has consumed so far, since the last set_local().
  std::int64_t steps() const { return window_.steps(); }

  // Steps.
  /// Whether gradients may be used now: false inside an accumulate() scope that is not its window's last.
  bool at_window_end() const { return !scope_ || scope_->syncs; }
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
  bool overflowed() const { return overflowed_; }
  /// The optimizer has stepped: the window is consumed.
  void stepped();
  /// zero_grad(): clears gradients and abandons pending passes. Inside accumulate() only a window that a step has
  /// consumed is cleared.
  void clear(bool set_to_none);

  // State: this rank's part of the window, pending gradients included. No rank communicates.
  /// Throws UsageError where there is no such state: inside a backward pass, between accumulate() and its backward
  /// pass, while a window's round has not been run, and after gradients were lost; also inside a window where
  /// micro-batches are kept apart (ReducerOptions::reproducible).
  StateDict state_dict() const override;
  /// What is in the window now is forgotten. Another number of ranks: see redistribute() in window_state.h.
  void load_state_dict(const StateDict& state) override;

  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  SyncStats stats() const;

 private:
  struct Pass {
    bool open = false;
    bool synchronizes = false;
    std::set<int> tasks;  // graph tasks that have not ended: nested backward passes have their own
    std::thread::id thread;
    std::chrono::steady_clock::time_point begin;
    std::vector<int> order;  // parameters as their gradients came, while buckets are being tuned
  };
  struct ParameterState {
    int fires = 0;              // of its hook in this pass
    int expected_fires = 1;     // learned from the pass before: reentrant checkpointing fires more than once
    std::uint32_t version = 0;  // of the gradient when the last pass ended
    bool attached = false;      // its gradient was in its slot
  };
  struct BucketState {
    int waiting = 0;        // gradients that this pass has not brought yet
    bool averaged = false;  // holds the mean already, not this rank's share of a sum
    bool late = false;      // written to after it had left in the round under way
  };
  class PassToken;
  struct Life;

  // Passes (reducer_pass.cpp).
  void before_accumulate(int parameter);
  void after_accumulate(int parameter);
  void begin_pass();
  void drop_consumed_gradients();
  void register_task();
  void task_ended(int task);
  void task_died(int task) noexcept;
  void flush_pass();
  void complete_pass();
  void close_dangling_pass();

  // Rounds (reducer_round.cpp).
  void open_round();
  void start_ready_buckets();
  void start_bucket(int bucket);
  void fill_bucket(int bucket);
  void start_all_buckets_and_close();
  void run_round();
  void finish_round();
  void judge_round();
  bool tuning() const;
  void tune_buckets(const sync::Round& round);
  void make_share(int bucket, double total_weight);
  void adopt(int parameter);
  void settle();
  void lose(const std::string& why);

  void load_bucket(int bucket, const StateDict& state);
  void abandon(const std::string& reason);
  void forget_window();
  void throw_if_lost() const;
  void throw_if_poisoned() const;
  void check_before_step() const;
  void check_plan() const;
  void check_gradients_untouched() const;
  void check_gradients_are_known() const;
  void check_parameters_unchanged(const std::vector<std::uint64_t>& now) const;
  /// The name of a parameter whose gradient came from no backward pass; nullopt if none.
  std::optional<std::string> foreign_gradient() const;
  bool holds_foreign_gradients() const { return foreign_gradient().has_value(); }
  void tell_refusal();
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
  std::unique_ptr<sync::BucketTuner> tuner_;
  std::unique_ptr<sync::SparseGradients> sparse_;
  std::unique_ptr<sync::PartialSums> partial_;

  mutable std::mutex mutex_;
  Window window_;
  AutomaticPolicy automatic_;
  std::optional<AccumulateStep> scope_;
  bool scope_weighed_ = false;  // the open scope's weight is in the window
  bool round_due_ = false;      // the open scope owes its window's round
  int no_sync_depth_ = 0;
  bool annotated_ = false;
  bool triggered_ = false;
  bool consumed_ = true;           // a step has used these gradients, or there are none of ours
  bool zeros_may_differ_ = false;  // pending gradients were cleared in place: ranks may have them for other parameters
  Pass pass_;
  std::vector<ParameterState> states_;
  std::vector<BucketState> buckets_;
  std::vector<std::uint64_t> hashes_;  // of the parameters when the window began
  std::unique_ptr<sync::Round> round_;
  double last_total_weight_ = 1;  // what averaged buckets were divided by, besides the loss scale
  double loss_scale_ = 1;         // of what is in the buckets that are not averaged
  bool overflowed_ = false;
  std::optional<std::string> abandoned_;
  std::optional<std::string> lost_;
  std::optional<std::string> refused_;  // why a step was refused whose round the others wait in
  bool owes_round_ = false;             // others wait in a round that this rank left by an exception
  double waited_ = 0;                   // in the last round
  std::optional<double> last_seconds_;  // of the last round from its pass's begin, while buckets may change places
  SyncStats stats_;
  bool early_step_logged_ = false;

  std::shared_ptr<Life> life_;
  std::unique_ptr<sync::AutogradHooks> hooks_;  // last, so that it is detached first
};

}  // namespace tutti
