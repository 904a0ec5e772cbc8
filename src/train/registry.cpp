#include "train/registry.h"

#include "tutti/core/error.h"

namespace tutti {

const NamedParameter* Accelerator::Registry::find(ParameterKey key) const {
  for (const Model& model : models) {
    for (const NamedParameter& parameter : model.parameters) {
      if (parameter.tensor.unsafeGetTensorImpl() == key) return &parameter;
    }
  }
  return nullptr;
}

std::string Accelerator::Registry::model_of(ParameterKey key) const {
  const auto holds = [key](const Model& model) {
    return std::ranges::any_of(model.parameters, [key](const NamedParameter& parameter) {
      return parameter.tensor.unsafeGetTensorImpl() == key;
    });
  };
  return numbered("model", std::ranges::find_if(models, holds) - models.begin());
}

std::string Accelerator::Registry::numbered(const std::string& name, std::size_t index) {
  return index == 0 ? name : name + "_" + std::to_string(index);
}

void Accelerator::Registry::add(const std::shared_ptr<Reducer>& reducer, const std::vector<NamedParameter>& parameters,
                                bool has_optimizer) {
  reducers.push_back({.reducer = reducer, .has_optimizer = has_optimizer});
  for (const NamedParameter& parameter : parameters) reducer_of[parameter.tensor.unsafeGetTensorImpl()] = reducer;
}

void Accelerator::Registry::release(const std::vector<NamedParameter>& parameters,
                                    const std::shared_ptr<Reducer>& also) {
  std::vector<std::shared_ptr<Reducer>> released;
  if (also) released.push_back(also);
  for (const NamedParameter& parameter : parameters) {
    const auto held = reducer_of.find(parameter.tensor.unsafeGetTensorImpl());
    if (held == reducer_of.end() || held->second == also) continue;
    if (std::ranges::find(reducers, held->second, &PreparedReducer::reducer)->has_optimizer) {
      throw UsageError("prepare(): parameter '" + parameter.name + "' of " +
                       model_of(parameter.tensor.unsafeGetTensorImpl()) +
                       " belongs to another prepared optimizer already");
    }
    released.push_back(held->second);
  }
  for (const std::shared_ptr<Reducer>& reducer : released) {
    std::erase_if(reducer_of, [&reducer](const auto& entry) { return entry.second == reducer; });
    std::erase_if(reducers, [&reducer](const PreparedReducer& one) { return one.reducer == reducer; });
    scopes.erase(reducer.get());
  }
}

}  // namespace tutti
