#pragma once
// Decides at the start of a backward pass whether it synchronizes. No I/O. All ranks get the same result.
#include <cstdint>
#include <span>
#include <vector>

#include "tutti/sync/reducer_options.h"

namespace tutti {

/// Lengths, in passes, of the last two windows of a rank; 0 if there was none.
struct WindowLengths {
  std::int64_t last = 0;
  std::int64_t before = 0;
};

/// The automatic policy: synchronizes every pass until two consecutive windows have the same length on all ranks, then
/// only the expected last pass. It learns from sync headers, which are equal on all ranks.
class AutomaticPolicy {
 public:
  /// `pass`: the number of the pass in the window, from 1. step() synchronizes passes after the expected last one, so a
  /// longer window of any length costs one more synchronization.
  bool synchronizes(std::int64_t pass) const { return expected_ == 0 || pass == expected_; }

  /// `ranks`: the lengths of all ranks, from the headers of a synchronization.
  void learn(std::span<const WindowLengths> ranks);

  /// The expected length; 0 while learning.
  std::int64_t expected() const { return expected_; }
  /// Sets the expected length.
  void expect(std::int64_t length) { expected_ = length; }

 private:
  std::int64_t expected_ = 0;
};

/// The inputs of the decision.
struct PassContext {
  SyncPolicy policy = SyncPolicy::every_pass;
  std::int64_t pass = 1;          ///< in the window, from 1
  bool triggered = false;         ///< trigger_sync_in_backward() asked for this pass
  bool no_sync = false;           ///< a no_sync() scope is open
  bool annotated = false;         ///< no_sync() was used before: it decides instead of the automatic policy
  bool in_accumulate = false;     ///< an accumulate() scope is open
  bool accumulate_syncs = false;  ///< it is the last of its window
  bool sync_each_batch = false;   ///< the plugin's option
};

/// Whether the pass synchronizes. Precedence: trigger_sync_in_backward(), no_sync(), accumulate(), the policy.
bool synchronizes(const PassContext& context, const AutomaticPolicy& automatic);

}  // namespace tutti
