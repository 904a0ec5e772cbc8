#pragma once
// The interface of objects that a checkpoint saves.
#include <memory>

#include "tutti/state/state_dict.h"

namespace tutti {

/// Tells when the object that holds it has been destroyed. A copy belongs to the copied object alone. Not thread safe.
class Lifetime {
 public:
  Lifetime() = default;                                                            ///< of a new object
  Lifetime(const Lifetime& /*of_original*/) noexcept {}                            ///< of a new object
  Lifetime& operator=(const Lifetime& /*of_original*/) noexcept { return *this; }  ///< changes nothing

  /// Expires with the object.
  std::weak_ptr<const void> watch() const {
    if (!token_) token_ = std::make_shared<char>();
    return token_;
  }

 private:
  mutable std::shared_ptr<const void> token_;
};

/// Derive from it to save an object with the checkpoint: Accelerator::register_for_checkpointing().
class Stateful {
 public:
  virtual ~Stateful() = default;
  /// Returns all values that load_state_dict() needs. Tensors may be shared with the object: the caller copies them
  /// before it writes them.
  virtual StateDict state_dict() const = 0;
  /// Restores the object from `state`, whose tensors may be in CPU memory: copy them to the device of the object.
  /// Throws CheckpointError, and leaves the object unchanged, if the state does not fit.
  virtual void load_state_dict(const StateDict& state) = 0;
  /// Ends a registration with the object.
  const Lifetime& lifetime() const { return lifetime_; }

 private:
  Lifetime lifetime_;
};

}  // namespace tutti
