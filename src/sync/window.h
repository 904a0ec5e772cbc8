#pragma once
// The accumulation window: the backward passes between two steps of one optimizer, and their weights. No I/O.
#include <cstdint>

#include "sync/sync_policy.h"
#include "tutti/state/state_dict.h"

namespace tutti {

/// The divisor. Plain: the sum over passes and the mean over ranks, as in DistributedDataParallel. Weighted (inside
/// accumulate()): the sum divided by the weights of all scopes of all ranks.
enum class Weighting { undecided, plain, weighted };

/// What the weights of a window's scopes count. On another number of ranks, a rank's part of a split batch has another
/// size, so the weights of parts change with the number of ranks.
enum class WeightUnit {
  none,              ///< no weight above 0
  micro_batch,       ///< micro-batches, or what the program counts, such as tokens
  split_batch_part,  ///< a rank's parts of batches that are split over all ranks
  mixed,             ///< both
};
/// The unit of the sum of weights of two units.
WeightUnit combined(WeightUnit a, WeightUnit b);
/// The unit in Window::state_dict(). Throws CheckpointError if it is not valid.
WeightUnit weight_unit_of(const StateDict& window);

class Window {
 public:
  /// A backward pass begins outside accumulate(). Throws UsageError if the window has weighted passes.
  void begin_plain_pass();
  /// A backward pass begins inside an accumulate() scope. Throws UsageError if the window has plain passes.
  void begin_weighted_pass();
  /// A backward pass has reached other parts of the model only.
  void join_pass() { ++joined_; }
  /// It did not synchronize.
  void add_joined_pending() { ++joined_pending_; }
  void clear_joined_pending() { joined_pending_ = 0; }
  /// Adds the weight of an accumulate() scope; must be called once per scope. Throws as begin_weighted_pass().
  void add_weight(double weight, WeightUnit unit = WeightUnit::micro_batch);
  /// Drops the weights of scopes without a pass in the window.
  void drop_weights();
  /// The synchronized window has `weighting` on the ranks with a pass in it.
  void adopt(Weighting weighting);
  /// A pass ended without a synchronization.
  void add_pending() { ++pending_; }
  /// A synchronization of all passes has ended.
  void on_sync() {
    pending_ = joined_pending_ = 0;
    ++syncs_;
  }
  /// Starts a new window after zero_grad() or a step. Only a step records the length of the window.
  void restart(bool stepped);

  StateDict state_dict() const;
  /// Throws CheckpointError, and changes nothing, if the state is not valid.
  void load_state_dict(const StateDict& state);

  Weighting weighting() const { return weighting_; }
  std::int64_t passes() const { return passes_; }            ///< so far in this window
  std::int64_t length() const { return passes_ + joined_; }  ///< passes so far over any part of the model
  std::int64_t pending() const { return pending_; }          ///< passes whose gradients are not synchronized
  /// Whether this rank or another one may have gradients that are not synchronized. Equal on all ranks.
  bool awaits_sync() const { return pending_ + joined_pending_ > 0; }
  std::int64_t syncs() const { return syncs_; }  ///< synchronizations so far in this window
  double weight() const { return weight_; }      ///< of this rank's scopes
  WeightUnit weight_unit() const { return weight_unit_; }
  std::int64_t steps() const { return steps_; }  ///< windows that a step has consumed
  void set_steps(std::int64_t steps) { steps_ = steps; }
  const WindowLengths& lengths() const { return lengths_; }

 private:
  Weighting weighting_ = Weighting::undecided;
  std::int64_t passes_ = 0;
  std::int64_t joined_ = 0;
  std::int64_t joined_pending_ = 0;
  std::int64_t pending_ = 0;
  std::int64_t syncs_ = 0;
  double weight_ = 0;
  WeightUnit weight_unit_ = WeightUnit::none;
  std::int64_t steps_ = 0;
  WindowLengths lengths_;
};

}  // namespace tutti
