#pragma once
// Snapshots of a model's parameters, to tell whether two trainings did the same.
#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <vector>

namespace tutti::bench {

using Parameters = std::vector<at::Tensor>;

Parameters copy_of(const Parameters& parameters);

std::int64_t bytes_of(const Parameters& parameters);

/// Equal for equal bits.
std::uint64_t digest(const Parameters& parameters);

/// How far apart two trainings from `start` ended, as a fraction of how far the second went: 0 for equal ones, about 1
/// for unrelated ones.
double relative_distance(const Parameters& one, const Parameters& other, const Parameters& start);

}  // namespace tutti::bench
