#pragma once
// Does this backward pass synchronize? Pure decisions, taken when the pass begins; all ranks come to the same one.
#include <cstdint>
#include <span>
#include <vector>

#include "tutti/sync/reducer_options.h"

namespace tutti {

/// Lengths, in passes, of the two windows that a rank finished last; 0 where there was none.
struct WindowLengths {
  std::int64_t last = 0;
  std::int64_t before = 0;
};

/// The automatic policy: synchronizes every pass until two windows in a row had the same length on all ranks, then only
/// the pass that is expected to be the last. What it learns comes from the headers of rounds, which every rank sees
/// alike.
class AutomaticPolicy {
 public:
  /// `pass`: which pass of the window this is, from 1. Passes after the expected last one are left to step(): a longer
  /// window costs one round more, however much longer it is.
  bool synchronizes(std::int64_t pass) const { return expected_ == 0 || pass == expected_; }

  /// All ranks' lengths, as a round's headers carried them.
  void learn(std::span<const WindowLengths> ranks);

  /// The length that is expected; 0 while learning.
  std::int64_t expected() const { return expected_; }
  /// Goes on from what another one had learned.
  void expect(std::int64_t length) { expected_ = length; }

 private:
  std::int64_t expected_ = 0;
};

/// What a pass's decision depends on.
struct PassContext {
  SyncPolicy policy = SyncPolicy::every_pass;
  std::int64_t pass = 1;          ///< in the window, from 1
  bool triggered = false;         ///< trigger_sync_in_backward() asked for this pass
  bool no_sync = false;           ///< a no_sync() scope is open
  bool annotated = false;         ///< no_sync() was used before: the user decides, automatic stands back
  bool in_accumulate = false;     ///< an accumulate() scope is open
  bool accumulate_syncs = false;  ///< and it is its window's last
  bool sync_each_batch = false;   ///< the plugin's option
};

/// The decision. trigger_sync_in_backward() wins over no_sync(), which wins over accumulate(), which wins over the
/// policy.
bool synchronizes(const PassContext& context, const AutomaticPolicy& automatic);

}  // namespace tutti
