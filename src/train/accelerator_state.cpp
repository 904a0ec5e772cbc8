#include "train/accelerator_state.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "train/model_buffers.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/internal_call.h"

namespace tutti {

bool Accelerator::State::local() const {
  return std::ranges::any_of(reducers, [](const PreparedReducer& one) { return one.reducer->local(); });
}

bool Accelerator::State::takes_local_steps() const {
  return std::ranges::any_of(reducers, [](const PreparedReducer& one) { return !one.ignored && one.reducer->local(); });
}

UsageError Accelerator::State::refusal_after_local_sgd(const std::string& call) {
  return UsageError(
      call +
      " after an exception has ended LocalSGD: each rank holds other parameters, and steps are still local. Call "
      "free_memory(), prepare() again and load a checkpoint");
}

const NamedParameter* Accelerator::State::find(ParameterKey key) const {
  for (const Model& model : models) {
    for (const NamedParameter& parameter : model.parameters) {
      if (parameter.tensor.unsafeGetTensorImpl() == key) return &parameter;
    }
  }
  return nullptr;
}

std::string Accelerator::State::model_of(ParameterKey key) const {
  const auto holds = [key](const Model& model) {
    return std::ranges::any_of(model.parameters, [key](const NamedParameter& parameter) {
      return parameter.tensor.unsafeGetTensorImpl() == key;
    });
  };
  return numbered("model", std::ranges::find_if(models, holds) - models.begin());
}

std::string Accelerator::State::numbered(const std::string& name, std::size_t index) {
  return index == 0 ? name : name + "_" + std::to_string(index);
}

void Accelerator::State::add(const PreparedReducer& prepared, const std::vector<NamedParameter>& parameters) {
  reducers.push_back(prepared);
  for (const NamedParameter& parameter : parameters) {
    reducer_of[parameter.tensor.unsafeGetTensorImpl()] = prepared.reducer;
  }
}

bool Accelerator::State::has_optimizer(const std::shared_ptr<Reducer>& reducer) const {
  const auto found = std::ranges::find(reducers, reducer, &PreparedReducer::reducer);
  return found != reducers.end() && found->has_optimizer;
}

void Accelerator::State::release(const std::vector<NamedParameter>& parameters,
                                 const std::vector<std::shared_ptr<Reducer>>& also) {
  std::vector<std::shared_ptr<Reducer>> released = also;
  for (const NamedParameter& parameter : parameters) {
    const auto held = reducer_of.find(parameter.tensor.unsafeGetTensorImpl());
    if (held == reducer_of.end() || std::ranges::find(released, held->second) != released.end()) continue;
    if (has_optimizer(held->second)) {
      throw UsageError("prepare(): parameter '" + parameter.name + "' of " +
                       model_of(parameter.tensor.unsafeGetTensorImpl()) +
                       " belongs to another prepared optimizer already: to replace that optimizer, call "
                       "free_memory() and prepare the model again with the new one");
    }
    released.push_back(held->second);
  }
  for (const std::shared_ptr<Reducer>& reducer : released) {
    std::erase_if(reducer_of, [&reducer](const auto& entry) { return entry.second == reducer; });
    std::erase_if(reducers, [&reducer](const PreparedReducer& one) { return one.reducer == reducer; });
    scopes.erase(reducer.get());
  }
}

std::vector<NamedParameter> Accelerator::State::trained_by(const torch::optim::Optimizer& optimizer) const {
  std::vector<NamedParameter> parameters;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& tensor : group.params()) {
      const NamedParameter* parameter = find(tensor.unsafeGetTensorImpl());
      if (parameter == nullptr) {
        std::ostringstream shape;
        shape << tensor.sizes();
        throw UsageError("prepare(): the optimizer holds a parameter of shape " + shape.str() +
                         " that is in no prepared model: prepare its model too");
      }
      parameters.push_back(*parameter);
    }
  }
  // Several models may have parameters of the same name. State is saved by name, so names must be unique.
  std::map<std::string, std::set<const at::TensorImpl*>> called;
  for (const NamedParameter& parameter : parameters) {
    called[parameter.name].insert(parameter.tensor.unsafeGetTensorImpl());
  }
  for (NamedParameter& parameter : parameters) {
    if (called.at(parameter.name).size() == 1) continue;
    parameter.name = model_of(parameter.tensor.unsafeGetTensorImpl()) + "." + parameter.name;
  }
  return parameters;
}

std::vector<std::shared_ptr<Reducer>> Accelerator::State::reducers_of(
    const std::vector<detail::ModelRef>& of_models) const {
  if (of_models.size() == 1) {
    const auto prepared = reducers_of_model.find(&*of_models.front());
    if (prepared != reducers_of_model.end()) return prepared->second;
  }
  std::vector<at::Tensor> parameters;
  for (const detail::ModelRef& model : of_models) {
    const auto listed = model->parameters();
    parameters.insert(parameters.end(), listed.begin(), listed.end());
  }
  return reducers_of(parameters);
}

std::vector<std::shared_ptr<Reducer>> Accelerator::State::reducers_of(const std::vector<at::Tensor>& parameters) const {
  std::vector<std::shared_ptr<Reducer>> found;
  for (const at::Tensor& parameter : parameters) {
    const auto entry = reducer_of.find(parameter.unsafeGetTensorImpl());
    if (entry == reducer_of.end()) {
      if (is_ignored(parameter)) continue;
      throw UsageError("a parameter belongs to no prepared model: pass its model to prepare()");
    }
    if (std::ranges::find(found, entry->second) == found.end()) found.push_back(entry->second);
  }
  return found;
}

void Accelerator::State::connect_parts() const {
  // The index of a reducer's group, which is that of a reducer in it.
  std::unordered_map<const Reducer*, std::size_t> group_of;
  for (std::size_t i = 0; i < reducers.size(); ++i) group_of[reducers[i].reducer.get()] = i;
  for (const auto& [model, parts] : reducers_of_model) {
    for (const auto& part : parts) {
      const std::size_t from = group_of.at(part.get());
      for (auto& [reducer, group] : group_of) {
        if (group == from) group = group_of.at(parts.front().get());
      }
    }
  }
  for (const PreparedReducer& one : reducers) {
    std::vector<std::shared_ptr<Reducer>> parts;
    for (const PreparedReducer& other : reducers) {
      const bool trains = !other.reducer->parameters().empty();
      if (trains && group_of.at(other.reducer.get()) == group_of.at(one.reducer.get())) parts.push_back(other.reducer);
    }
    one.reducer->set_parts(parts);
  }
}

void Accelerator::State::watch_buffers() {
  if (buffer_sync == BufferSync::none || num_processes() == 1) return;
  const auto optimizers_of = [this](const std::vector<at::Tensor>& parameters) {
    std::set<BufferSchedule::OptimizerIndex> found;
    for (const at::Tensor& parameter : parameters) {
      const auto reducer = reducer_of.find(parameter.unsafeGetTensorImpl());
      if (reducer == reducer_of.end()) continue;
      const auto optimizer = std::ranges::find(optimizers, reducer->second, &Optimizer::reducer);
      if (optimizer != optimizers.end()) found.insert(static_cast<std::size_t>(optimizer - optimizers.begin()));
    }
    return found;
  };
  const auto schedule = std::make_shared<BufferSchedule>();
  for (const Model& model : models) schedule->add(model.module, model.error_name, optimizers_of);
  for (std::size_t index = 0; index < optimizers.size(); ++index) {
    Optimizer& optimizer = optimizers[index];
    optimizer.state_->after_step = nullptr;
    if (!schedule->concerns(index)) continue;
    if (!buffer_communicator) buffer_communicator = communicator.duplicate("buffers");
    // Buffers stay those of a rank while one of these reducers takes local steps. The reducer of ignored parameters
    // always does, so the others decide for it.
    std::vector<std::weak_ptr<Reducer>> deciding;
    const bool of_ignored = std::ranges::any_of(
        reducers, [&](const PreparedReducer& one) { return one.ignored && one.reducer == optimizer.reducer(); });
    for (const PreparedReducer& one : reducers) {
      if (of_ignored ? !one.ignored : one.reducer == optimizer.reducer()) deciding.push_back(one.reducer);
    }
    optimizer.state_->after_step = [schedule, index, how = buffer_sync, group = *buffer_communicator, deciding] {
      const auto is_local = [](const std::weak_ptr<Reducer>& weak) {
        const auto reducer = weak.lock();
        return !reducer || reducer->local();
      };
      if (std::ranges::none_of(deciding, is_local)) synchronize_buffers(schedule->after_step(index), how, group);
    };
  }
}

StateDict Accelerator::State::accumulation_state() const {
  std::vector<ScopeCounter> counters;
  for (const PreparedReducer& one : reducers) {
    const auto known = scopes.find(one.reducer.get());
    counters.push_back(known == scopes.end() ? ScopeCounter() : known->second);
  }
  return ScopeCounter::save(counters, num_processes());
}

void Accelerator::State::load_accumulation_state(const StateDict& state) {
  const auto counters = ScopeCounter::load(state, reducers.size(), num_processes(), plugin.num_steps);
  for (std::size_t i = 0; i < counters.size(); ++i) scopes[reducers[i].reducer.get()] = counters[i];
}

void Accelerator::State::compare_parameters_without_optimizer() {
  for (const PreparedReducer& one : reducers) {
    std::vector<NamedParameter> unstepped;
    for (const Model& model : models) {
      for (const NamedParameter& parameter : model.parameters) {
        const auto held = reducer_of.find(parameter.tensor.unsafeGetTensorImpl());
        if (held == reducer_of.end() || held->second == one.reducer || held->second->local()) continue;
        if (!has_optimizer(held->second)) unstepped.push_back(parameter);
      }
    }
    one.reducer->compare_also(std::move(unstepped));
  }
}

}  // namespace tutti
