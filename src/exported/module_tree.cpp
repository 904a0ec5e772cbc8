#include "exported/module_tree.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tutti/core/error.h"

namespace tutti::exported {
namespace {

constexpr std::size_t max_levels = 128;

// Returns the names between the dots; nullopt if a name is empty or there are too many.
std::optional<std::vector<std::string>> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= path.size();) {
    const auto end = std::min(path.find('.', begin), path.size());
    if (end == begin) return std::nullopt;
    parts.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  if (parts.size() > max_levels) return std::nullopt;
  return parts;
}

torch::nn::Module* find_child(const torch::nn::Module& parent, const std::string& name) {
  const auto children = parent.named_children();
  const auto* child = children.find(name);
  return child == nullptr ? nullptr : child->get();
}

bool has_tensor(const torch::nn::Module& module, const std::string& name) {
  return module.named_parameters(/*recurse=*/false).contains(name) ||
         module.named_buffers(/*recurse=*/false).contains(name);
}

}  // namespace

torch::nn::Module& ModuleTree::owner_of(const std::string& path) {
  const auto parts = parts_of(path);
  if (!parts) throw CheckpointError("'" + path + "' is not a valid name of a parameter or buffer");
  torch::nn::Module* owner = &root_;
  for (std::size_t i = 0; i + 1 < parts->size(); ++i) {
    torch::nn::Module* child = find_child(*owner, (*parts)[i]);
    if (child == nullptr) {
      if (has_tensor(*owner, (*parts)[i]))
        throw CheckpointError("'" + path + "' continues the name of a parameter or buffer");
      child = owner->register_module((*parts)[i], std::make_shared<torch::nn::Module>((*parts)[i])).get();
    }
    owner = child;
  }
  if (has_tensor(*owner, parts->back()) || find_child(*owner, parts->back()) != nullptr) {
    throw CheckpointError("the name '" + path + "' occurs twice");
  }
  return *owner;
}

void ModuleTree::add(const std::string& name, at::Tensor tensor, bool requires_grad, bool is_parameter) {
  torch::nn::Module& owner = owner_of(name);
  const std::string last = name.substr(name.rfind('.') == std::string::npos ? 0 : name.rfind('.') + 1);
  if (is_parameter) {
    owner.register_parameter(last, std::move(tensor), requires_grad);
  } else {
    owner.register_buffer(last, std::move(tensor));
  }
}

torch::nn::Module& ModuleTree::module(const std::string& path) {
  const auto parts = path.empty() ? std::nullopt : parts_of(path);
  if (!parts) return root_;
  torch::nn::Module* owner = &root_;
  for (const std::string& part : *parts) {
    torch::nn::Module* child = find_child(*owner, part);
    if (child == nullptr) {
      if (has_tensor(*owner, part)) return root_;
      child = owner->register_module(part, std::make_shared<torch::nn::Module>(part)).get();
    }
    owner = child;
  }
  return *owner;
}

}  // namespace tutti::exported
