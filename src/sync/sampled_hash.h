#pragma once
// Hashes of a few elements of a tensor: enough to detect an optimizer step, few enough for a negligible cost.
#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <span>

namespace tutti::sync {

/// A hash of some elements of a tensor in CPU memory, and of all elements of a small one. Another `salt` samples other
/// elements. 0 for tensors on a device.
std::uint64_t sampled_hash(const at::Tensor& tensor, int salt = 0);

/// One hash of all `hashes`.
std::uint64_t combine(std::span<const std::uint64_t> hashes);

}  // namespace tutti::sync
