#pragma once
// The automatic policy: which backward passes synchronize where the program does not say it. No I/O. All ranks get the
// same result.
#include <cstdint>
#include <span>
#include <string>

#include "tutti/sync/reducer_options.h"

namespace tutti {

/// The policy's name in the program: "automatic".
std::string name_of(SyncPolicy policy);

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

}  // namespace tutti
