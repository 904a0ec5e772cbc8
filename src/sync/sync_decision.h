#pragma once
// Whether the next backward pass synchronizes: the owner of what the program has requested by no_sync(),
// trigger_sync_in_backward() and the policy. No I/O. All ranks get the same result.
#include <cstdint>
#include <optional>
#include <span>

#include "sync/sync_policy.h"
#include "tutti/detail/sync/sync_scopes.h"
#include "tutti/state/state_dict.h"

namespace tutti::sync {

class SyncDecision {
 public:
  /// `reproducible`: no pass synchronizes, because the sum is computed at the end of a window.
  SyncDecision(SyncPolicy policy, bool reproducible) : policy_(policy), reproducible_(reproducible) {}

  /// Calls nest.
  void enter_no_sync();
  void leave_no_sync() { --no_sync_depth_; }
  /// The next pass synchronizes in any scope.
  void trigger() { triggered_ = true; }

  /// A pass begins. `pass`: its number in the window, from 1. Returns whether it synchronizes. Precedence: trigger(),
  /// no_sync(), the scope, the policy.
  bool begin_pass(std::int64_t pass, const std::optional<AccumulationStep>& scope);
  /// `ranks`: the window lengths of all ranks, from the headers of a synchronization.
  void learn(std::span<const WindowLengths> ranks) { automatic_.learn(ranks); }
  /// Forgets the learned window length.
  void reset_learned() { automatic_ = AutomaticPolicy(); }
  /// A step had to synchronize. Returns the number of passes that were expected, in the first call under the automatic
  /// policy; nullopt in all others.
  std::optional<std::int64_t> on_early_step();

  void save(StateDict& state) const;
  /// Throws CheckpointError, and changes nothing, if the state is not valid.
  void load(const StateDict& state);

 private:
  SyncPolicy policy_;
  bool reproducible_;
  AutomaticPolicy automatic_;
  int no_sync_depth_ = 0;
  bool annotated_ = false;  // no_sync() has been used
  bool triggered_ = false;
  bool early_step_reported_ = false;
};

}  // namespace tutti::sync
