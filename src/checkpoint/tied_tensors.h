#pragma once
// Tied tensors: one tensor under several names.
#include <ATen/core/TensorBody.h>

#include <map>
#include <string>
#include <vector>

#include "state/start_copy.h"
#include "tutti/checkpoint/safetensors.h"
#include "tutti/state/state_dict.h"

namespace tutti::checkpoint {

/// True if both refer to the same elements of the same memory in the same order.
bool same_tensor(const at::Tensor& a, const at::Tensor& b);

/// Maps each further name of a tied tensor to its first name in alphabetical order.
std::map<std::string, std::string> tied_names(const std::map<std::string, at::Tensor>& tensors);

/// `tensors` without those that occur before in the list.
std::vector<at::Tensor> without_repeats(std::vector<at::Tensor> tensors);

/// Holds each tensor once. The metadata maps the other names to it, as Python's safetensors.torch.save_model does.
Safetensors without_ties(const std::map<std::string, at::Tensor>& tensors);

/// start_copy_to_cpu() that keeps tied tensors tied.
StateDict start_copy_keeping_ties(const StateDict& state, std::vector<devices::StreamEvent>& arrivals);

/// The tensors of `state`.
std::map<std::string, at::Tensor> tensors_of(const StateDict& state);

}  // namespace tutti::checkpoint
