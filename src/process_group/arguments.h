#pragma once
// What c10d's callers may get wrong, found before anything is sent.
#include <cstdint>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "tutti/comm/communicator.h"

namespace tutti::process_group {

using Tensors = std::vector<at::Tensor>;

/// All throw UsageError, which begins with `what`.
/// The one tensor of a list: a process has one of them.
at::Tensor& require_single(const char* what, Tensors& tensors);
Tensors& require_single(const char* what, std::vector<Tensors>& lists);
/// A dense tensor in CPU memory.
void require_usable(const char* what, const at::Tensor& tensor);
/// `list` holds a tensor for each of `size` ranks.
void require_one_each(const char* what, const Tensors& list, int size);
/// The same, and all are of the dtype and shape of `one`.
void require_each_like(const char* what, const Tensors& list, const at::Tensor& one, int size);
/// The list that `root` alone gives, a tensor like `one` for each rank; empty on others. `name`: what it holds.
Tensors list_of_root(const char* what, const char* name, std::vector<Tensors>& lists, const at::Tensor& one, int rank,
                     int root, int size);
/// As many outputs as inputs.
void require_pairs(const char* what, const Tensors& outputs, const Tensors& inputs);
/// `wholes[i]` holds `size` times the elements of `parts[i]`, of the same dtype.
void require_concatenated(const char* what, const Tensors& wholes, const Tensors& parts, int size);
/// `tensor` in parts along its first dimension, one for each rank: of the given sizes, or equal ones where none are
/// given.
Tensors split_rows(const char* what, const char* name, const at::Tensor& tensor, const std::vector<std::int64_t>& sizes,
                   int size);
/// `root`, which is a rank of the group.
int require_root(const char* what, std::int64_t root, int size);
/// tutti's name of c10d's `op`.
ReduceOp to_reduce_op(const char* what, const c10d::ReduceOp& op);

}  // namespace tutti::process_group
