#pragma once
// Groups gradients into buckets. No I/O: sizes in, buckets out.
//
// Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB 2020): gradients become
// ready roughly in reverse order of registration, so buckets are filled from the last parameter to the first, and the
// first bucket is small so that communication starts early.
#include <cstdint>
#include <span>
#include <vector>

#include "tutti/sync/reducer_options.h"

namespace tutti {

/// The size of one parameter's gradient.
struct GradientSize {
  std::int64_t bytes = 0;
  /// Gradients of different groups (dtype and device) never share a bucket.
  int group = 0;
};

/// One contiguous piece of a group's flat memory.
struct Bucket {
  int group = 0;
  std::int64_t begin = 0;       ///< first byte in the group's memory; a multiple of slot_alignment
  std::int64_t end = 0;         ///< one past the last byte, padding included
  std::vector<int> parameters;  ///< in slot order
};

/// The place of one parameter's gradient.
struct Slot {
  int bucket = 0;
  std::int64_t offset = 0;  ///< in bytes, from the start of the group's memory
};

struct BucketPlan {
  std::vector<Bucket> buckets;            ///< in the order in which they are reduced
  std::vector<Slot> slots;                ///< by parameter
  std::vector<std::int64_t> group_bytes;  ///< size of each group's memory
};

/// Slots start on cache lines, so that no two parameters share a cache line.
inline constexpr std::int64_t slot_alignment = 64;

/// Plans buckets for `gradients`, which must be in registration order. A bucket ends before it exceeds its maximum
/// size; a larger gradient has its own bucket. `order`: numbers of gradients in the order in which they
/// became ready, with repeats and -1 (none) allowed. Gradients that are missing from `order` follow in the reverse
/// order of registration. group_bytes does not depend on `order`. Throws UsageError for maximum sizes below 1 byte.
BucketPlan plan_buckets(std::span<const GradientSize> gradients, const BucketOptions& options = {},
                        std::span<const int> order = {});

}  // namespace tutti
