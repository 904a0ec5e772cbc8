#include "sync/model_name.h"

#include <torch/nn/module.h>

namespace tutti {

namespace {

bool has_model(const NamedParameter& parameter) {
  return parameter.model && !parameter.model->empty();
}

}  // namespace

std::string quoted(const NamedParameter& parameter) {
  std::string text = "'" + parameter.name + "'";
  if (has_model(parameter)) text += " of " + *parameter.model;
  return text;
}

namespace sync {

std::string short_name_of(const torch::nn::Module& module) {
  const std::string& name = module.name();
  const auto end = name.rfind("::");
  return end == std::string::npos || name.find('<') != std::string::npos ? name : name.substr(end + 2);
}

std::string models_of(const std::vector<NamedParameter>& parameters) {
  std::string text;
  const std::string* last = nullptr;
  for (const NamedParameter& parameter : parameters) {
    // The parameters of a model are adjacent and share the string.
    if (!has_model(parameter) || parameter.model.get() == last) continue;
    last = parameter.model.get();
    text += (text.empty() ? "" : " and ") + *last;
  }
  return text.empty() ? "" : text + ": ";
}

}  // namespace sync

}  // namespace tutti
