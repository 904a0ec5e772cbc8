#pragma once
// How accumulate() forms windows; the names are Accelerate's.

namespace tutti {

struct GradientAccumulationPlugin {
  /// Micro-batches of one rank in an optimizer step; at least 1.
  int num_steps = 1;
  /// Let a scheduler count micro-batches instead of optimizer steps: for schedules whose length was given in
  /// micro-batches.
  bool adjust_scheduler = false;
  /// End a window with the last batch of the innermost running tutti::DataLoader.
  bool sync_with_dataloader = true;
  /// Synchronize in every backward pass, for less memory or for looking at gradients; the step stays at the window's
  /// end.
  bool sync_each_batch = false;
};

}  // namespace tutti
