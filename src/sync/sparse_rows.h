#pragma once
// The wire format of a sparse gradient: the indices of its rows and their values. No I/O.
#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <span>
#include <vector>

namespace tutti::sync {

/// Returns `gradient` as bytes. It must be coalesced with one sparse dimension, or undefined if the rank has none.
std::vector<std::byte> pack_rows(const at::Tensor& gradient);

/// Returns the sum of the gradients of all ranks times `scale`, a coalesced tensor with the shape of `parameter`. Ranks
/// are added in rank order, so all ranks get the same bits. Undefined if no rank had a gradient. Throws PeerError,
/// which names the rank, for bytes that are not rows of `parameter`.
at::Tensor sum_rows(std::span<const std::span<const std::byte>> of_ranks, const at::Tensor& parameter, double scale);

}  // namespace tutti::sync
