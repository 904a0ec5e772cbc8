#include "tutti/state/state_dict.h"

#include <ATen/core/Tensor.h>

#include "device/devices.h"
#include "device/host_copy.h"
#include "state/start_copy.h"

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

namespace {

bool is_copied_through_staging(const at::Tensor& tensor) {
  return devices::is_accelerator(tensor.device()) && tensor.layout() == at::kStrided && !tensor.is_quantized();
}

}  // namespace

StateDict start_copy_to_cpu(const StateDict& state, std::vector<devices::StreamEvent>& arrivals) {
  StateDict copy;
  std::vector<std::string> names;
  std::vector<at::Tensor> on_accelerators;
  for (const auto& [name, value] : state.values()) {
    const auto* tensor = std::get_if<at::Tensor>(&value);
    if (tensor == nullptr || !tensor->defined()) {
      copy.set(name, value);
    } else if (is_copied_through_staging(*tensor)) {
      names.push_back(name);
      on_accelerators.push_back(*tensor);
    } else {
      // Other layouts have no memory format.
      const auto format = tensor->layout() == at::kStrided ? at::MemoryFormat::Contiguous : at::MemoryFormat::Preserve;
      copy.set(name, tensor->detach().to(tensor->options().device(at::kCPU), false, true, format));
    }
  }
  const std::vector<at::Tensor> copies = devices::start_copies_on_host(on_accelerators, arrivals);
  for (std::size_t i = 0; i < names.size(); ++i) copy.set(names[i], copies[i]);
  return copy;
}

StateDict copy_to_cpu(const StateDict& state) {
  std::vector<devices::StreamEvent> arrivals;
  StateDict copy = start_copy_to_cpu(state, arrivals);
  for (const devices::StreamEvent& arrival : arrivals) arrival.wait();
  return copy;
}

}  // namespace tutti
