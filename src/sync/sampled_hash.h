#pragma once
// Hashes of a few elements of a tensor: enough to detect an optimizer step, few enough for a negligible cost.
//
// A tensor of n elements has min(16, n) equal parts. A round reads a run of ceil(n / 16'000) elements of each part, and
// each round reads other runs. So a round costs 16 short reads and, for large tensors, a thousandth of the memory.
// rounds_to_read_all() rounds in a row read every element.
#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace tutti::sync {

/// A hash of the elements of a tensor in CPU memory that `round` reads: of all elements of a small tensor. The hash is
/// one of the values: conj() and its resolve_conj() have equal hashes. 0 for tensors that are not dense CPU tensors.
std::uint64_t sampled_hash(const at::Tensor& tensor, std::int64_t round = 0);

/// The number of consecutive rounds that read every element of a tensor of `elements` elements: at most
/// min(1000, ceil(elements / 16)), at least 1.
std::int64_t rounds_to_read_all(std::int64_t elements);

/// A hash of all `bytes`.
std::uint64_t hash_of_bytes(std::span<const std::byte> bytes);

/// One hash of all `hashes`.
std::uint64_t combine(std::span<const std::uint64_t> hashes);

}  // namespace tutti::sync
