#include "tutti/state/state_dict.h"

#include <ATen/core/Tensor.h>

namespace tutti {

void StateDict::set(const std::string& name, const StateDict& part) {
  for (const auto& [key, value] : part.values_) set(name + "." + key, value);
}

StateDict StateDict::part(const std::string& name) const {
  const std::string prefix = name + ".";
  StateDict part;
  for (auto entry = values_.lower_bound(prefix); entry != values_.end() && entry->first.starts_with(prefix); ++entry) {
    part.set(entry->first.substr(prefix.size()), entry->second);
  }
  return part;
}

const StateValue& StateDict::find(const std::string& name) const {
  const auto entry = values_.find(name);
  if (entry == values_.end()) throw CheckpointError("the saved state has no '" + name + "'");
  return entry->second;
}

StateDict copy_to_cpu(const StateDict& state) {
  StateDict copy;
  for (const auto& [name, value] : state.values()) {
    if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
      copy.set(name,
               tensor->detach().to(tensor->options().device(at::kCPU), false, true, at::MemoryFormat::Contiguous));
    } else {
      copy.set(name, value);
    }
  }
  return copy;
}

}  // namespace tutti
