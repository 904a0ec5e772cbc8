#pragma once
// Which gradients travel together. Pure: sizes in, buckets out.
//
// Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB 2020): gradients become
// ready roughly in reverse order of registration, so buckets are filled from the last parameter to the first, and the
// first bucket is small so that communication starts early.
#include <cstdint>
#include <span>
#include <vector>

#include "tutti/sync/reducer_options.h"

namespace tutti {

/// What the plan needs to know of one parameter.
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

/// Where one parameter's gradient lives.
struct Slot {
  int bucket = 0;
  std::int64_t offset = 0;  ///< in bytes, from the start of the group's memory
};

struct BucketPlan {
  std::vector<Bucket> buckets;            ///< in the order in which they are reduced
  std::vector<Slot> slots;                ///< by parameter
  std::vector<std::int64_t> group_bytes;  ///< size of each group's memory
};

/// Slots start on cache lines, so that no two parameters share one.
inline constexpr std::int64_t slot_alignment = 64;

/// Plans buckets for `gradients`, which stand in registration order. A bucket ends before it would exceed its cap; a
/// gradient larger than the cap has a bucket of its own. `order`: their numbers as they became ready, perhaps with
/// repeats and -1 for none; those that are not there follow in the reverse order of registration. group_bytes do not
/// depend on it. Throws UsageError for caps below 1.
BucketPlan plan_buckets(std::span<const GradientSize> gradients, const BucketOptions& options = {},
                        std::span<const int> order = {});

}  // namespace tutti
