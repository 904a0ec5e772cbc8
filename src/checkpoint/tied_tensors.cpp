#include "checkpoint/tied_tensors.h"

#include <ATen/core/Tensor.h>

#include <set>

namespace tutti::checkpoint {

bool same_tensor(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined() || !a.has_storage() || !b.has_storage()) return false;
  // Empty tensors have no memory to share.
  return a.numel() > 0 && a.const_data_ptr() == b.const_data_ptr() && a.scalar_type() == b.scalar_type() &&
         a.device() == b.device() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

std::vector<at::Tensor> without_repeats(std::vector<at::Tensor> tensors) {
  std::set<const at::TensorImpl*> seen;
  std::erase_if(tensors, [&](const at::Tensor& one) { return !seen.insert(one.unsafeGetTensorImpl()).second; });
  return tensors;
}

std::map<std::string, std::string> tied_names(const std::map<std::string, at::Tensor>& tensors) {
  std::map<std::string, std::string> tied;
  // Finds the first name by address, so that it need not compare all pairs of tensors.
  std::map<const void*, std::vector<std::string>> first_names;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) continue;
    auto& others = first_names[tensor.const_data_ptr()];
    bool found = false;
    for (const std::string& other : others) {
      if (!same_tensor(tensors.at(other), tensor)) continue;
      tied.emplace(name, other);
      found = true;
      break;
    }
    if (!found) others.push_back(name);
  }
  return tied;
}

Safetensors without_ties(const std::map<std::string, at::Tensor>& tensors) {
  Safetensors content{.tensors = tensors, .metadata = tied_names(tensors)};
  for (const auto& [name, first] : content.metadata) content.tensors.erase(name);
  return content;
}

StateDict start_copy_keeping_ties(const StateDict& state, std::vector<devices::StreamEvent>& arrivals) {
  const auto tied = tied_names(tensors_of(state));
  StateDict once;
  for (const auto& [name, value] : state.values()) {
    if (!tied.contains(name)) once.set(name, value);
  }
  StateDict copy = start_copy_to_cpu(once, arrivals);
  for (const auto& [name, first] : tied) copy.set(name, copy.get<at::Tensor>(first));
  return copy;
}

std::map<std::string, at::Tensor> tensors_of(const StateDict& state) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, value] : state.values()) {
    if (const auto* tensor = std::get_if<at::Tensor>(&value)) tensors.emplace(name, *tensor);
  }
  return tensors;
}

}  // namespace tutti::checkpoint
