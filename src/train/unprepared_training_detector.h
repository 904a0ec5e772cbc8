#pragma once
// Detects a program that trains on several ranks without prepare() and without the Accelerator's backward(). Each rank
// would train its own model, without an error.
#include <cstdint>

#include <ATen/record_function.h>

namespace tutti {

/// Counts the gradients that backward passes of this thread accumulate into parameters. Created with the first loader
/// and destroyed by prepare(), so that prepared loops have no overhead.
class UnpreparedTrainingDetector {
 public:
  UnpreparedTrainingDetector();
  ~UnpreparedTrainingDetector();
  UnpreparedTrainingDetector(const UnpreparedTrainingDetector&) = delete;
  UnpreparedTrainingDetector& operator=(const UnpreparedTrainingDetector&) = delete;

  /// Throws UsageError if gradients were accumulated and no Accelerator of this process has prepared anything. With
  /// several Accelerators, the training may belong to another one.
  void check(int ranks) const;

  /// Records that an Accelerator has prepared an object.
  static void note_prepared();

 private:
  std::int64_t before_;
  at::CallbackHandle callback_;
};

}  // namespace tutti
