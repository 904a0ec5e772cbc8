#pragma once
// Checks the arguments of c10d's calls before anything is sent.
#include <cstdint>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "tutti/comm/communicator.h"

namespace tutti::process_group {

using Tensors = std::vector<at::Tensor>;

// Each function throws UsageError, whose text begins with `what`, the name of the call.

/// Returns the one tensor of a list. c10d allows a tensor per device, tutti one per rank.
at::Tensor& require_single(const char* what, Tensors& tensors);
Tensors& require_single(const char* what, std::vector<Tensors>& lists);
/// Requires a dense tensor in CPU memory or on a device of this process.
void require_usable(const char* what, const at::Tensor& tensor);
/// Requires that `list` holds a usable tensor for each of `size` ranks.
void require_one_each(const char* what, const Tensors& list, int size);
/// As require_one_each(), and requires the dtype and shape of `one`.
void require_each_like(const char* what, const Tensors& list, const at::Tensor& one, int size);
/// Returns the list that only `root` passes: a tensor like `one` for each rank. Returns an empty list on other ranks.
/// `name` is the name of the argument in messages.
Tensors list_of_root(const char* what, const char* name, std::vector<Tensors>& lists, const at::Tensor& one, int rank,
                     int root, int size);
/// Requires as many outputs as inputs.
void require_pairs(const char* what, const Tensors& outputs, const Tensors& inputs);
/// Requires that `wholes[i]` holds `size` times the elements of `parts[i]`, of the same dtype.
void require_concatenated(const char* what, const Tensors& wholes, const Tensors& parts, int size);
/// Splits `tensor` along its first dimension into a part for each rank: of the given sizes, or equal parts if `sizes`
/// is empty.
Tensors split_rows(const char* what, const char* name, const at::Tensor& tensor, const std::vector<std::int64_t>& sizes,
                   int size);
/// Returns `root`, which must be a rank of the group.
int require_root(const char* what, std::int64_t root, int size);
/// Converts c10d's `op`.
ReduceOp to_reduce_op(const char* what, const c10d::ReduceOp& op);

}  // namespace tutti::process_group
