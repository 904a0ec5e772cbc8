#pragma once
// The buckets of gradients, by tutti's own plan (src/sync/bucket_plan.h).
#include <cstdint>
#include <filesystem>
#include <vector>

#include "plan/description.h"

namespace tutti::plan {

/// A gradient: its size, and the fraction of the backward pass after which it is ready.
struct Gradient {
  std::int64_t bytes = 0;
  double ready = 1;
};

/// `gradients` are in the order of registration.
std::vector<Bucket> buckets_of(const std::vector<Gradient>& gradients);

/// Buckets of gradients of which only the total size is known: small gradients, ready at a constant rate.
std::vector<Bucket> buckets_of_bytes(double bytes);

/// Buckets of the tensors of a safetensors file, last tensor first, ready at a constant rate. Reads only the header.
/// Throws CheckpointError, and UsageError if no tensor can have a gradient.
std::vector<Bucket> buckets_of_file(const std::filesystem::path& path);

}  // namespace tutti::plan
