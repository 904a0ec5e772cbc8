#include "train/registry.h"

#include "tutti/core/error.h"

namespace tutti {

const std::string* Accelerator::Registry::name_of(ParameterKey key) const {
  for (const Model& model : models) {
    for (const NamedParameter& parameter : model.parameters) {
      if (parameter.tensor.unsafeGetTensorImpl() == key) return &parameter.name;
    }
  }
  return nullptr;
}

void Accelerator::Registry::add(const std::shared_ptr<Reducer>& reducer, const std::vector<NamedParameter>& parameters,
                                bool has_optimizer) {
  reducers.push_back({.reducer = reducer, .has_optimizer = has_optimizer});
  for (const NamedParameter& parameter : parameters) reducer_of[parameter.tensor.unsafeGetTensorImpl()] = reducer;
}

void Accelerator::Registry::release(const std::vector<NamedParameter>& parameters) {
  for (const NamedParameter& parameter : parameters) {
    const auto held = reducer_of.find(parameter.tensor.unsafeGetTensorImpl());
    if (held == reducer_of.end()) continue;
    const auto owner = std::ranges::find(reducers, held->second, &Synchronized::reducer);
    if (owner->has_optimizer) {
      throw UsageError("prepare(): parameter '" + parameter.name + "' belongs to another prepared optimizer already");
    }
    const std::shared_ptr<Reducer> released = held->second;
    std::erase_if(reducer_of, [&released](const auto& entry) { return entry.second == released; });
    scopes.erase(released.get());
    reducers.erase(owner);
  }
}

}  // namespace tutti
