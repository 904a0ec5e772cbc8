#pragma once
// Makes tensors equal on all ranks.
//
// A tensor is written only if its bytes differ: a graph of autograd may still need it for a backward pass, and refuses
// a tensor whose version counter has moved.
#include <string>
#include <vector>

#include "tutti/comm/communicator.h"

namespace tutti::sync {

/// Broadcasts the tensors of rank 0 to all ranks, a few megabytes at a time. Shapes and dtypes must agree. Every rank
/// must call it. `name` is the name of the calls. Throws UsageError for a tensor that cannot hold the values because
/// its elements share memory.
void replicate(const std::vector<at::Tensor>& tensors, const Communicator& communicator,
               const std::string& name = "replicate");

/// The elements of all `tensors` in one CPU tensor of `dtype`.
at::Tensor flatten(const std::vector<at::Tensor>& tensors, at::ScalarType dtype);
/// The inverse of flatten(). Throws as replicate() does.
void unflatten_into(const at::Tensor& flat, const std::vector<at::Tensor>& tensors);

}  // namespace tutti::sync
