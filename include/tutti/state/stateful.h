#pragma once
// An object that a checkpoint holds.
#include "tutti/state/state_dict.h"

namespace tutti {

/// Derive from it to be saved with the rest: Accelerator::register_for_checkpointing().
class Stateful {
 public:
  virtual ~Stateful() = default;
  /// Everything that load_state_dict() needs. The tensors may be the object's own: they are copied before they are
  /// written.
  virtual StateDict state_dict() const = 0;
  /// Goes on as the object that gave `state`. Throws CheckpointError, and leaves the object as it was, when the state
  /// does not fit.
  virtual void load_state_dict(const StateDict& state) = 0;
};

}  // namespace tutti
