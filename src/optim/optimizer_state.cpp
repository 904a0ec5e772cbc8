#include "tutti/detail/optim/optimizer_state.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/StringUtil.h>
#include <c10/util/Type.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <typeinfo>
#include <utility>
#include <vector>

#include "device/host_copy.h"
#include "optim/archive_state.h"
#include "optim/optimizer_fields.h"

namespace tutti {
namespace {

using torch::optim::OptimizerParamGroup;
using torch::optim::OptimizerParamState;
using Betas = std::tuple<double, double>;
using States = std::remove_reference_t<decltype(std::declval<torch::optim::Optimizer&>().state())>;

constexpr const char* type_key = "type";
constexpr const char* saved_key = "saved";
constexpr const char* names_key = "param_names";

std::string group_key(std::size_t group, const std::string& field) {
  return "group." + std::to_string(group) + "." + field;
}
std::string state_key(const std::string& parameter, const std::string& field) {
  return "state." + parameter + "." + field;
}

void check_names(const torch::optim::Optimizer& optimizer, std::span<const std::string> names) {
  std::size_t count = 0;
  for (const OptimizerParamGroup& group : optimizer.param_groups()) count += group.params().size();
  if (count != names.size()) {
    throw UsageError("the optimizer has " + std::to_string(count) + " parameters, but " + std::to_string(names.size()) +
                     " names were given; give one for each, in the order of its groups");
  }
  std::map<std::string, const at::TensorImpl*> seen;
  auto name = names.begin();
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      // A parameter may be listed twice.
      const auto [known, first] = seen.emplace(*name, parameter.unsafeGetTensorImpl());
      if (!first && known->second != parameter.unsafeGetTensorImpl()) {
        throw UsageError("two parameters of the optimizer have the name '" + *name + "'");
      }
      ++name;
    }
  }
}

[[noreturn]] void misfit(const std::string& what) {
  throw CheckpointError("the saved state does not fit this optimizer, and nothing was loaded: " + what);
}

/// The names of the parameters by number; nullopt in a state that holds none.
using SavedNames = std::optional<std::vector<std::string>>;

SavedNames names_in(const StateDict& state) {
  const StateDict part = state.part(names_key);
  if (part.empty()) return std::nullopt;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < part.values().size(); ++i) names.push_back(part.get<std::string>(std::to_string(i)));
  return names;
}

StateDict without_names(const StateDict& state) {
  const std::string prefix = std::string(names_key) + ".";
  StateDict rest;
  for (const auto& [key, value] : state.values()) {
    if (!key.starts_with(prefix)) rest.set(key, value);
  }
  return rest;
}

/// The first few of the names that only `some` has.
std::string only_in(const std::vector<std::string>& some, const std::vector<std::string>& others) {
  constexpr std::size_t shown = 4;
  std::vector<std::string> names;
  std::ranges::set_difference(some, others, std::back_inserter(names));
  if (names.empty()) return "none";
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), shown); ++i) text += (i == 0 ? "'" : ", '") + names[i] + "'";
  return names.size() > shown ? text + " and " + std::to_string(names.size() - shown) + " more" : text;
}

/// `positions`: the numbers of the saved group's parameters in `saved_names`.
void check_group(std::size_t group, const std::vector<std::int64_t>& positions,
                 const std::vector<std::string>& saved_names, std::vector<std::string> here) {
  std::vector<std::string> saved;
  for (const std::int64_t position : positions) {
    if (position < 0 || static_cast<std::size_t>(position) >= saved_names.size()) {
      misfit("its group " + std::to_string(group) + " has a parameter without a name");
    }
    saved.push_back(saved_names[static_cast<std::size_t>(position)]);
  }
  std::ranges::sort(saved);
  std::ranges::sort(here);
  if (saved == here) return;
  misfit("parameters that only its group " + std::to_string(group) + " has: " + only_in(saved, here) +
         "; that only this optimizer's has: " + only_in(here, saved) +
         ": build the model and the groups that were saved, in the same order");
}

// The values of a state. Every value must be used.
class Saved {
 public:
  explicit Saved(const StateDict& state) : state_(state) {}

  bool contains(const std::string& key) const { return state_.contains(key); }
  template <typename T>
  const T& get(const std::string& key) {
    used_.insert(key);
    return state_.get<T>(key);
  }
  void check_all_used() const {
    for (const auto& [key, value] : state_.values()) {
      if (!used_.contains(key)) misfit("it has '" + key + "', which this optimizer does not have");
    }
  }

 private:
  const StateDict& state_;
  std::set<std::string> used_;
};

// An optimizer whose fields are known.
template <typename Type, typename Options, typename State>
class Known {
 public:
  // Exact type only: a derived class may have more state.
  static bool is(const torch::optim::Optimizer& optimizer) { return typeid(optimizer) == typeid(Type); }

  static StateDict save(const torch::optim::Optimizer& optimizer, std::span<const std::string> names,
                        const char* type) {
    StateDict result;
    result.set(type_key, std::string(type));
    std::size_t index = 0;
    for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
      const OptimizerParamGroup& group = optimizer.param_groups()[i];
      visit_options(options_of(group),
                    [&](const char* field, const auto& value) { result.set(group_key(i, field), to_value(value)); });
      std::vector<std::int64_t> indices;
      for (const at::Tensor& parameter : group.params()) {
        save_parameter(optimizer, parameter, names[index], result);
        indices.push_back(static_cast<std::int64_t>(index++));
      }
      result.set(group_key(i, "params"), std::move(indices));
    }
    return result;
  }

  static void load(torch::optim::Optimizer& optimizer, std::span<const std::string> names, const StateDict& state,
                   const SavedNames& saved_names, const char* type) {
    Saved saved(state);
    if (const auto& other = saved.get<std::string>(type_key); other != type) {
      misfit("it belongs to " + other + ", but this optimizer is " + type);
    }
    std::vector<Options> options;
    States states;
    std::size_t index = 0;
    for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
      const OptimizerParamGroup& group = optimizer.param_groups()[i];
      options.push_back(options_of(group));
      visit_options(options.back(),
                    [&](const char* field, auto& value) { from_value(saved, group_key(i, field), value); });
      const auto& positions = saved.get<std::vector<std::int64_t>>(group_key(i, "params"));
      if (saved_names) {
        check_group(i, positions, *saved_names, {names.begin() + index, names.begin() + index + group.params().size()});
      }
      std::vector<std::int64_t> indices;
      for (const at::Tensor& parameter : group.params()) {
        if (auto loaded = load_parameter(saved, parameter, names[index])) {
          states[parameter.unsafeGetTensorImpl()] = std::move(loaded);
        }
        indices.push_back(static_cast<std::int64_t>(index++));
      }
      if (!saved_names && positions != indices) {
        misfit("its group " + std::to_string(i) + " has " + std::to_string(positions.size()) +
               " parameters, this one has " + std::to_string(indices.size()) +
               (positions.size() == indices.size() ? " others" : ""));
      }
    }
    saved.check_all_used();
    // No statement below can fail.
    for (std::size_t i = 0; i < options.size(); ++i) {
      static_cast<Options&>(optimizer.param_groups()[i].options()) = options[i];
    }
    optimizer.state() = std::move(states);
  }

  static void convert(torch::optim::Optimizer& optimizer) {
    for (const OptimizerParamGroup& group : optimizer.param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        const auto entry = optimizer.state().find(parameter.unsafeGetTensorImpl());
        if (entry == optimizer.state().end()) continue;
        auto* state = dynamic_cast<State*>(entry->second.get());
        if (state == nullptr) continue;
        // Those of copy_for(), so that all ranks have one layout and take the same kind of step.
        const at::Tensor like = at::empty_like(parameter.detach(), parameter.options().device(at::kMeta));
        visit_state(*state, [&parameter, strides = like.strides()](const char*, auto& value, bool) {
          if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>) {
            if (!value.defined() || value.sizes() != parameter.sizes()) return;
            const bool fits = value.device() == parameter.device() &&
                              value.scalar_type() == type_for(parameter, value) && value.strides() == strides;
            if (!fits) value = copy_for(parameter, value);
          }
        });
      }
    }
  }

 private:
  static const Options& options_of(const OptimizerParamGroup& group) {
    if (const auto* options = dynamic_cast<const Options*>(&group.options())) return *options;
    throw UsageError("a parameter group of the optimizer has options of another class than " +
                     c10::demangle(typeid(Options).name()) + ": make its OptimizerParamGroup with these");
  }

  static void save_parameter(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                             const std::string& name, StateDict& result) {
    const auto entry = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (entry == optimizer.state().end()) return;
    visit_state(dynamic_cast<const State&>(*entry->second), [&](const char* field, const auto& value, bool) {
      if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>) {
        if (!value.defined()) return;
      }
      result.set(state_key(name, field), value);
    });
  }

  // Returns null if nothing was saved, because the parameter had made no step.
  static std::unique_ptr<OptimizerParamState> load_parameter(Saved& saved, const at::Tensor& parameter,
                                                             const std::string& name) {
    auto result = std::make_unique<State>();
    bool any = std::is_same_v<Type, torch::optim::Adagrad>;  // its state exists from construction
    visit_state(*result,
                [&](const char* field, const auto&, bool) { any = any || saved.contains(state_key(name, field)); });
    if (!any) return nullptr;
    visit_state(*result, [&](const char* field, auto& value, bool always) {
      const std::string key = state_key(name, field);
      if (!always && !saved.contains(key)) return;
      if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>) {
        value = like(parameter, saved.get<at::Tensor>(key), key);
      } else {
        value = saved.get<std::decay_t<decltype(value)>>(key);
      }
    });
    return result;
  }

  static at::Tensor like(const at::Tensor& parameter, const at::Tensor& saved, const std::string& key) {
    if (!saved.defined() || saved.sizes() != parameter.sizes()) {
      const std::string size = saved.defined() ? c10::str(saved.sizes()) : "undefined";
      misfit(c10::str("'", key, "' is ", size, ", but the parameter is ", parameter.sizes()));
    }
    return copy_for(parameter, saved);
  }

  // As in PyTorch, state has the dtype of its parameter.
  static at::ScalarType type_for(const at::Tensor& parameter, const at::Tensor& value) {
    return parameter.is_floating_point() || parameter.is_complex() ? parameter.scalar_type() : value.scalar_type();
  }

  // On the parameter's device and in its memory format.
  static at::Tensor copy_for(const at::Tensor& parameter, const at::Tensor& value) {
    const at::Tensor detached = parameter.detach();
    at::Tensor copy = at::empty_like(detached, detached.options().dtype(type_for(parameter, value)));
    devices::copy_without_wait(copy, value.detach());
    return copy;
  }

  static StateValue to_value(double value) { return value; }
  static StateValue to_value(bool value) { return value; }
  static StateValue to_value(const Betas& value) { return std::vector<double>{std::get<0>(value), std::get<1>(value)}; }

  static void from_value(Saved& saved, const std::string& key, double& value) { value = saved.get<double>(key); }
  static void from_value(Saved& saved, const std::string& key, bool& value) { value = saved.get<bool>(key); }
  static void from_value(Saved& saved, const std::string& key, Betas& value) {
    const auto& betas = saved.get<std::vector<double>>(key);
    if (betas.size() != 2) misfit("'" + key + "' has " + std::to_string(betas.size()) + " values, not 2");
    value = {betas[0], betas[1]};
  }
};

// Any other optimizer: the values that its save() writes.

// Many classes have no state before their first step, and then write nothing.
StateDict save_unknown(const torch::optim::Optimizer& optimizer, bool has_stepped) {
  const StateDict saved = state_from_save(optimizer);
  if (saved.empty() && (has_stepped || !optimizer.state().empty())) {
    throw UsageError(type_of(optimizer) +
                     " writes nothing in save() after a step, so its state would be lost: override save() and "
                     "load() of torch::optim::Optimizer; without any state, write a value");
  }
  StateDict result;
  result.set(type_key, type_of(optimizer));
  result.set(saved_key, saved);
  return result;
}

// save() writes by number, so the names must be in the saved order.
void load_unknown(torch::optim::Optimizer& optimizer, std::span<const std::string> names, const StateDict& state,
                  const SavedNames& saved_names) {
  if (const auto& other = state.get<std::string>(type_key); other != type_of(optimizer)) {
    misfit("it belongs to " + other + ", but this optimizer is " + type_of(optimizer));
  }
  for (std::size_t i = 0; saved_names && i < std::max(names.size(), saved_names->size()); ++i) {
    const std::string here = i < names.size() ? "'" + names[i] + "'" : "no parameter";
    const std::string there = i < saved_names->size() ? "'" + (*saved_names)[i] + "'" : "no parameter";
    if (here != there) {
      misfit("its parameter " + std::to_string(i) + " is " + there + ", this optimizer's is " + here +
             ": make the groups that were saved, in the same order");
    }
  }
  const StateDict saved = state.part(saved_key);
  if (saved.values().size() + 1 != state.values().size()) misfit("it has entries that save() does not write");
  // load() may fail after it has changed values, so `before` restores them.
  const StateDict before = copy_to_cpu(state_from_save(optimizer));
  const auto failure = replace_state(optimizer, saved);
  if (!failure) return;
  if (const auto not_restored = replace_state(optimizer, before)) {
    throw CheckpointError("the saved state does not fit this optimizer: " + *failure +
                          "; its earlier state could not be restored: " + *not_restored);
  }
  misfit(*failure);
}

// Calls `action` with the Known of `optimizer` and its name. Returns false for other optimizers.
template <typename Action>
bool with_known(const torch::optim::Optimizer& optimizer, Action action) {
  namespace optim = torch::optim;
  const auto attempt = [&](auto known, const char* type) {
    if (!known.is(optimizer)) return false;
    action(known, type);
    return true;
  };
  return attempt(Known<optim::Adam, optim::AdamOptions, optim::AdamParamState>(), "Adam") ||
         attempt(Known<optim::AdamW, optim::AdamWOptions, optim::AdamWParamState>(), "AdamW") ||
         attempt(Known<optim::SGD, optim::SGDOptions, optim::SGDParamState>(), "SGD") ||
         attempt(Known<optim::RMSprop, optim::RMSpropOptions, optim::RMSpropParamState>(), "RMSprop") ||
         attempt(Known<optim::Adagrad, optim::AdagradOptions, optim::AdagradParamState>(), "Adagrad");
}

}  // namespace

void set_parameter_names(StateDict& state, std::span<const std::string> names) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    std::string key = names_key;
    state.set(key.append(".").append(std::to_string(i)), names[i]);
  }
}

bool has_parameter_names(const torch::optim::Optimizer& optimizer) {
  return with_known(optimizer, [](const auto&, const char*) {});
}

StateDict optimizer_state(const torch::optim::Optimizer& optimizer, std::span<const std::string> names,
                          bool has_stepped) {
  check_names(optimizer, names);
  StateDict result;
  const bool known =
      with_known(optimizer, [&](auto type, const char* type_name) { result = type.save(optimizer, names, type_name); });
  return known ? result : save_unknown(optimizer, has_stepped);
}

void load_optimizer_state(torch::optim::Optimizer& optimizer, std::span<const std::string> names,
                          const StateDict& state) {
  check_names(optimizer, names);
  const SavedNames saved_names = names_in(state);
  const StateDict rest = without_names(state);
  const bool known = with_known(
      optimizer, [&](auto type, const char* type_name) { type.load(optimizer, names, rest, saved_names, type_name); });
  if (!known) load_unknown(optimizer, names, rest, saved_names);
}

void convert_optimizer_state(torch::optim::Optimizer& optimizer) {
  with_known(optimizer, [&](auto type, const char*) { type.convert(optimizer); });
}

}  // namespace tutti
