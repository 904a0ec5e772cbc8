#pragma once
// Snapshots of a model's parameters, for the comparison of two trainings.
#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <vector>

namespace tutti::bench {

using Parameters = std::vector<at::Tensor>;

Parameters copy_of(const Parameters& parameters);

std::int64_t bytes_of(const Parameters& parameters);

/// A hash that is equal for equal bits.
std::uint64_t digest(const Parameters& parameters);

/// The distance between the ends of two trainings from `start`, as a fraction of the distance that the second trained.
/// 0 for equal trainings, about 1 for unrelated ones.
double relative_distance(const Parameters& one, const Parameters& other, const Parameters& start);

}  // namespace tutti::bench
