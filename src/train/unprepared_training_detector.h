#pragma once
// Notices that a program trains on several ranks and has forgotten prepare(), where it never calls the Accelerator's
// backward(): every rank would train a model of its own, in silence.
#include <cstdint>

#include <ATen/record_function.h>

namespace tutti {

/// Counts the gradients that backward passes of this thread bring to parameters, as long as it lives. It is made with
/// the first loader and goes with prepare(), so trained loops do not pay for it.
class UnpreparedTrainingDetector {
 public:
  UnpreparedTrainingDetector();
  ~UnpreparedTrainingDetector();
  UnpreparedTrainingDetector(const UnpreparedTrainingDetector&) = delete;
  UnpreparedTrainingDetector& operator=(const UnpreparedTrainingDetector&) = delete;

  /// Throws UsageError where there were such gradients, and no Accelerator of this process has prepared anything: with
  /// several of them, what trains may be another one's.
  void check(int ranks) const;

  /// Some Accelerator has prepared something.
  static void note_prepared();

 private:
  std::int64_t before_;
  at::CallbackHandle callback_;
};

}  // namespace tutti
