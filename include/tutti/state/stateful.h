#pragma once
// The interface of objects that a checkpoint saves.
#include "tutti/state/state_dict.h"

namespace tutti {

/// Derive from it to save an object with the checkpoint: Accelerator::register_for_checkpointing().
class Stateful {
 public:
  virtual ~Stateful() = default;
  /// Returns all values that load_state_dict() needs. Tensors may be shared with the object: the caller copies them
  /// before it writes them.
  virtual StateDict state_dict() const = 0;
  /// Restores the object from `state`. Throws CheckpointError, and leaves the object unchanged, if the state does not
  /// fit.
  virtual void load_state_dict(const StateDict& state) = 0;
};

}  // namespace tutti
