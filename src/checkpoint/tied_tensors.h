#pragma once
// One tensor under several names.
#include <ATen/core/TensorBody.h>

#include <map>
#include <string>

#include "tutti/checkpoint/safetensors.h"
#include "tutti/state/state_dict.h"

namespace tutti::checkpoint {

/// Whether both are the same elements of the same memory in the same order.
bool same_tensor(const at::Tensor& a, const at::Tensor& b);

/// Which names stand for a tensor that an earlier name (in the alphabet) has too: later name -> first name.
std::map<std::string, std::string> tied_names(const std::map<std::string, at::Tensor>& tensors);

/// Each tensor once; the metadata says for the other names which one they are, as Python's safetensors.torch.save_model
/// has it.
Safetensors without_ties(const std::map<std::string, at::Tensor>& tensors);

/// copy_to_cpu() where what was one tensor stays one.
StateDict copy_keeping_ties(const StateDict& state);

/// The tensors of `state`.
std::map<std::string, at::Tensor> tensors_of(const StateDict& state);

}  // namespace tutti::checkpoint
