#pragma once
// Which gradients travel together, by tutti's own plan (src/sync/bucket_plan.h).
#include <cstdint>
#include <filesystem>
#include <vector>

#include "plan/description.h"

namespace tutti::plan {

/// A gradient: its size, and the part of the backward pass that has run when it is there.
struct Gradient {
  std::int64_t bytes = 0;
  double ready = 1;
};

/// `gradients` stand in the order of registration.
std::vector<Bucket> buckets_of(const std::vector<Gradient>& gradients);

/// Of gradients of which only the bytes are known: small ones, which the backward pass makes at one pace.
std::vector<Bucket> buckets_of_bytes(double bytes);

/// Of the tensors of a safetensors file, the last one first, at one pace. Reads its header only. Throws
/// CheckpointError, and UsageError where it holds none that could have gradients.
std::vector<Bucket> buckets_of_file(const std::filesystem::path& path);

}  // namespace tutti::plan
