#pragma once
// A sparse gradient on the wire: which rows of the parameter it has, and their values. Pure.
#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <span>
#include <vector>

namespace tutti::sync {

/// `gradient` as bytes: coalesced, with one sparse dimension, or undefined for a rank that has none.
std::vector<std::byte> pack_rows(const at::Tensor& gradient);

/// The sum of what all ranks packed, times `scale`: a coalesced tensor shaped as `parameter`. Ranks are added in their
/// order, so that all of them get the same bits. Undefined where no rank had a gradient. Throws PeerError naming a
/// rank whose bytes cannot be rows of `parameter`.
at::Tensor sum_rows(std::span<const std::span<const std::byte>> of_ranks, const at::Tensor& parameter, double scale);

}  // namespace tutti::sync
