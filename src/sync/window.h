#pragma once
// The window: the backward passes between two steps of one optimizer, and what they weigh. Pure.
#include <cstdint>

#include "sync/sync_policy.h"
#include "tutti/state/state_dict.h"

namespace tutti {

/// Who divides. Plain: the sum over passes and the mean over ranks, as DistributedDataParallel. Weighted (inside
/// accumulate()): the sum divided by the weights of all scopes of all ranks.
enum class Weighting { undecided, plain, weighted };

class Window {
 public:
  /// A backward pass begins outside accumulate(). Throws UsageError when scopes have weighed this window already.
  void begin_plain_pass();
  /// A backward pass begins inside an accumulate() scope. Throws UsageError when the window has plain passes.
  void begin_weighted_pass();
  /// Adds an accumulate() scope's weight: once a scope. Throws as begin_weighted_pass().
  void add_weight(double weight);
  /// The pass ended without having been synchronized.
  void add_pending() { ++pending_; }
  /// A round has put everything into the buffer.
  void on_sync() {
    pending_ = 0;
    ++syncs_;
  }
  /// zero_grad(), or a step: what follows is a new window. Only a step's window is remembered by its length.
  void restart(bool stepped);

  StateDict state_dict() const;
  /// Throws CheckpointError, and changes nothing, for a state that no window can be in.
  void load_state_dict(const StateDict& state);

  Weighting weighting() const { return weighting_; }
  std::int64_t passes() const { return passes_; }    ///< so far in this window
  std::int64_t pending() const { return pending_; }  ///< passes whose gradients are this rank's own
  std::int64_t syncs() const { return syncs_; }      ///< rounds so far in this window
  double weight() const { return weight_; }          ///< of this rank's scopes
  std::int64_t steps() const { return steps_; }      ///< windows that a step has consumed
  const WindowLengths& lengths() const { return lengths_; }

 private:
  Weighting weighting_ = Weighting::undecided;
  std::int64_t passes_ = 0;
  std::int64_t pending_ = 0;
  std::int64_t syncs_ = 0;
  double weight_ = 0;
  std::int64_t steps_ = 0;
  WindowLengths lengths_;
};

}  // namespace tutti
