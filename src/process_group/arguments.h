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
at::Tensor& the_one(const char* what, Tensors& tensors);
Tensors& the_one(const char* what, std::vector<Tensors>& lists);
/// A dense tensor in CPU memory.
void require_usable(const char* what, const at::Tensor& tensor);
/// `list` holds a tensor for each of `size` ranks, all of the dtype and shape of `one`.
void require_each_like(const char* what, const Tensors& list, const at::Tensor& one, int size);
/// As many outputs as inputs.
void require_pairs(const char* what, const Tensors& outputs, const Tensors& inputs);
/// `whole` holds `size` times the elements of `part`, of the same dtype.
void require_whole(const char* what, const at::Tensor& whole, const at::Tensor& part, int size);
/// `tensor` in parts along its first dimension, one for each rank: of the given sizes, or equal ones where none are
/// given.
Tensors parts_of(const char* what, const char* name, const at::Tensor& tensor, const std::vector<std::int64_t>& sizes,
                 int size);
int require_root(const char* what, std::int64_t root, int size);
ReduceOp op_of(const char* what, const c10d::ReduceOp& op);

}  // namespace tutti::process_group
