#include "train/saved_parts.h"

#include <algorithm>
#include <functional>
#include <set>
#include <span>
#include <utility>

#include "optim/step_options.h"
#include "tracking/printed.h"
#include "train/match_saved.h"
#include "tutti/checkpoint/model_file.h"
#include "tutti/core/error.h"
#include "tutti/detail/core/crc32c.h"
#include "tutti/detail/data/epoch_cursor.h"
#include "tutti/detail/data/stream_cursor.h"
#include "tutti/detail/sync/reducer.h"

namespace tutti {

namespace {

StateDict model_state(const torch::nn::Module& model) {
  StateDict state;
  for (const auto& [name, tensor] : named_tensors_of(model)) state.set(name, tensor);
  return state;
}

StateDict buffers_in(const torch::nn::Module& model, const StateDict& state) {
  const auto parameters = model.named_parameters();
  StateDict buffers;
  for (const auto& [name, value] : state.values()) {
    if (!parameters.contains(name)) buffers.set(name, value);
  }
  return buffers;
}

void load_model_state(const torch::nn::Module& model, const StateDict& state) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, value] : state.values()) tensors.emplace(name, state.get<at::Tensor>(name));
  load_model(model, tensors);
}

/// What the prepared objects are, independent of the order in which they were prepared.
class Identities {
 public:
  using ParameterKey = const at::TensorImpl*;

  template <typename Models>
  explicit Identities(const Models& models) {
    std::map<std::string, int> of_class;
    for (const auto& model : models) {
      std::string name = model.module->name();
      if (const int before = of_class[name]++; before > 0) name += "#" + std::to_string(before);
      for (const NamedParameter& parameter : model.parameters) {
        names_.emplace(parameter.tensor.unsafeGetTensorImpl(), name + ": " + parameter.name);
      }
      models_.push_back(std::move(name));
    }
  }

  const std::string& model(std::size_t index) const { return models_.at(index); }
  /// Of an object that owns these parameters.
  std::string owner_of(const std::vector<ParameterKey>& parameters) const {
    std::set<std::string> names;
    for (const ParameterKey parameter : parameters) {
      if (const auto known = names_.find(parameter); known != names_.end()) names.insert(known->second);
    }
    std::uint32_t sum = 0;
    for (const std::string& name : names) {
      const std::string line = name + "\n";
      sum = crc32c(std::as_bytes(std::span(line)), sum);
    }
    return std::to_string(names.size()) + " parameters " + printed("%08x", sum);
  }
  std::string optimizer(const torch::optim::Optimizer& optimizer) const {
    std::vector<ParameterKey> parameters;
    for (const auto& group : optimizer.param_groups()) {
      for (const at::Tensor& parameter : group.params()) parameters.push_back(parameter.unsafeGetTensorImpl());
    }
    return owner_of(parameters);
  }

 private:
  std::vector<std::string> models_;
  std::map<ParameterKey, std::string> names_;
};

constexpr const char* accumulation_part = "accumulation";
constexpr const char* loader_kind = "loader";
constexpr const char* model_kind = "model";
constexpr const char* micro_batches_key = "micro_batches";

/// In the state of a rank: marks a part without values, whose keys would not show that the rank saved it.
std::string empty_key(const std::string& part) {
  return "empty." + part;
}

/// A cursor is restored by value: load_state_dict() would detach it from a running loop.
std::function<std::function<void()>()> undo_of(const std::shared_ptr<Stateful>& cursor) {
  const auto restore = [](const auto& known) -> std::function<void()> {
    return [known, before = *known] { *known = before; };
  };
  return [cursor, restore] {
    const auto of_dataset = std::dynamic_pointer_cast<EpochCursor>(cursor);
    return of_dataset ? restore(of_dataset) : restore(std::dynamic_pointer_cast<StreamCursor>(cursor));
  };
}

/// Also restores rates that the program has set by hand, which load() of a schedule replaces.
std::function<std::function<void()>()> undo_of(const std::shared_ptr<Stateful>& schedule,
                                               torch::optim::Optimizer& optimizer) {
  return [schedule, &optimizer]() -> std::function<void()> {
    return [schedule, &optimizer, before = schedule->state_dict(), rates = learning_rates_of(optimizer)] {
      schedule->load_state_dict(before);
      auto& groups = optimizer.param_groups();
      for (std::size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(rates.at(i));
    };
  };
}

std::string identity_in(const std::map<std::string, StateDict>& shared, const std::string& name) {
  const auto identities = shared.find(identities_part);
  // Earlier versions saved no identities: objects are matched by their order.
  if (identities == shared.end() || !identities->second.contains(name)) return {};
  return identities->second.get<std::string>(name);
}

/// True if a loader of this identity, which has no match, is certain to be none of the saved ones: all others are
/// matched by identities, and none has this one. A match by order could give the position of one loader to another.
bool is_additional(const std::string& identity, const std::vector<std::string>& here,
                   const std::vector<std::string>& saved, const std::vector<std::optional<std::size_t>>& matches) {
  for (std::size_t i = 0; i < here.size(); ++i) {
    if (matches[i] && (saved[*matches[i]] != here[i] || here[i] == identity)) return false;
  }
  return true;
}

/// What to do about a part of this program that the checkpoint lacks.
std::string remedy_for(const std::string& kind) {
  if (kind == "local_sgd") return "create LocalSGD after load_state()";
  if (kind == loader_kind) return "create the loader after load_state()";
  return (kind.empty() ? "register" : "prepare") + std::string(" it after load_state()");
}

}  // namespace

bool Accelerator::State::SavedParts::is_callback(const std::string& part) {
  return part.starts_with("object_callback_");
}

std::string Accelerator::State::SavedParts::window_part(std::size_t number) {
  return "window_" + std::to_string(number);
}

std::string Accelerator::State::SavedParts::gradients_part(std::size_t number) {
  return "used_gradients_" + std::to_string(number);
}

Accelerator::State::SavedParts::Part Accelerator::State::SavedParts::part_of(std::shared_ptr<Stateful> object) {
  return {.save = [object] { return object->state_dict(); },
          .load = [object](const StateDict& state) { object->load_state_dict(state); }};
}

void Accelerator::State::SavedParts::set_own(StateDict& per_rank, const std::string& part, const StateDict& values) {
  per_rank.set(part, values);
  if (values.empty()) per_rank.set(empty_key(part), true);
}

std::optional<StateDict> Accelerator::State::SavedParts::own_in(const StateDict& per_rank, const std::string& part) {
  StateDict own = per_rank.part(part);
  // Earlier versions saved some objects on rank 0 only, and no mark of a state without values.
  if (own.empty() && !per_rank.contains(empty_key(part))) return std::nullopt;
  return own;
}

StateDict Accelerator::State::SavedParts::state_of(const Part& part, const StateDict& shared,
                                                   const std::optional<StateDict>& own) {
  if (!own) return shared;
  if (part.kind != model_kind) return *own;
  StateDict state = shared;
  for (const auto& [name, value] : own->values()) state.set(name, value);
  return state;
}

void Accelerator::State::SavedParts::add(const std::string& kind, const std::string& identity, Part part) {
  const auto number = std::ranges::count(all, kind, &Part::kind);
  part.name = numbered(kind, static_cast<std::size_t>(number));
  part.kind = kind;
  part.identity = identity;
  all.push_back(std::move(part));
}

StateDict Accelerator::State::SavedParts::identities() const {
  StateDict state;
  for (const Part& part : all) {
    if (!part.kind.empty()) state.set(part.name, part.identity);
  }
  for (std::size_t i = 0; i < windows.size(); ++i) state.set(window_part(i), windows[i]);
  return state;
}

std::vector<std::string> Accelerator::State::SavedParts::match(const std::map<std::string, StateDict>& shared,
                                                               const std::string& folder) {
  std::map<std::string, std::vector<Part*>> kinds;
  for (Part& part : all) {
    if (!part.kind.empty()) {
      kinds[part.kind].push_back(&part);
    } else if (shared.contains(part.name)) {
      part.saved_name = part.name;
    }
  }
  std::set<const Part*> additional;
  for (const auto& [kind, of_kind] : kinds) {
    std::vector<std::string> here;
    std::vector<std::string> saved;
    for (const Part* part : of_kind) here.push_back(part->identity);
    while (shared.contains(numbered(kind, saved.size()))) {
      saved.push_back(identity_in(shared, numbered(kind, saved.size())));
    }
    const auto matches = match_saved(here, saved);
    for (std::size_t i = 0; i < here.size(); ++i) {
      if (matches[i]) {
        of_kind[i]->saved_name = numbered(kind, *matches[i]);
      } else if (kind == loader_kind && is_additional(here[i], here, saved, matches)) {
        additional.insert(of_kind[i]);
      }
    }
  }
  std::set<std::string> used{identities_part};
  for (const Part& part : all) {
    if (part.saved_name) {
      used.insert(*part.saved_name);
    } else if (!additional.contains(&part) && !is_optional(part.name)) {
      throw CheckpointError(folder + " has no '" + part.name +
                            "', which this program has in addition to what was saved: " + remedy_for(part.kind) +
                            ", or start without the checkpoint");
    }
  }
  for (std::size_t i = 0; i < windows.size(); ++i) used.insert(gradients_part(i));
  std::vector<std::string> unused;
  for (const auto& [name, state] : shared) {
    if (!used.contains(name)) unused.push_back(name);
  }
  return unused;
}

void Accelerator::State::SavedParts::match_windows(std::map<std::string, StateDict>& shared) {
  StateDict& accumulation = shared.at(accumulation_part);
  const auto counts = accumulation.get<std::vector<std::int64_t>>(micro_batches_key);
  if (counts.size() != windows.size()) {
    throw CheckpointError("the checkpoint has " + std::to_string(counts.size()) +
                          " prepared optimizers and models without one, this program has " +
                          std::to_string(windows.size()));
  }
  std::vector<std::string> saved;
  for (std::size_t i = 0; i < counts.size(); ++i) saved.push_back(identity_in(shared, window_part(i)));
  saved_windows.clear();
  for (const auto& number : match_saved(windows, saved)) saved_windows.push_back(number.value());
  const StateDict as_saved = accumulation;
  for (const auto& [name, value] : as_saved.values()) {
    const auto counts_of = as_saved.get<std::vector<std::int64_t>>(name);
    if (counts_of.size() != windows.size()) continue;  // the part's load() refuses it
    std::vector<std::int64_t> reordered;
    for (const std::size_t number : saved_windows) reordered.push_back(counts_of[number]);
    accumulation.set(name, std::move(reordered));
  }
}

Accelerator::State::SavedParts Accelerator::State::saved_parts() {
  end_registrations();
  const Identities identities(models);
  SavedParts parts;
  const bool is_local = local();
  for (const PreparedSchedule& schedule : schedulers) {
    SavedParts::Part part = SavedParts::part_of(schedule.object);
    part.undo = undo_of(schedule.object, *schedule.optimizer);
    part.per_rank = is_local;
    parts.add("scheduler", identities.optimizer(*schedule.optimizer), std::move(part));
  }
  const auto add_unique = [&parts](const std::string& name, SavedParts::Part part, bool has_state_per_rank) {
    part.name = name;
    part.per_rank = has_state_per_rank;
    parts.all.push_back(std::move(part));
  };
  if (scaler) add_unique(scaler_part, SavedParts::part_of(scaler), is_local);
  for (const NamedObject& one : registered) {
    SavedParts::Part part = SavedParts::part_of(one.object);
    part.own_values = std::identity();
    add_unique("object_" + one.name, std::move(part), is_local);
  }
  for (const NamedObject& one : per_rank) {
    SavedParts::Part part = SavedParts::part_of(one.object);
    part.per_rank = part.early = true;
    parts.add("local_sgd", one.name, std::move(part));
  }
  // After the objects: a sampler may depend on one.
  for (const NamedLoader& loader : loaders) {
    SavedParts::Part part = SavedParts::part_of(loader.cursor.lock());
    part.undo = undo_of(loader.cursor.lock());
    part.evaluation = loader.evaluation;
    parts.add(loader_kind, loader.description, std::move(part));
  }
  add_unique(accumulation_part,
             {.save = [this] { return accumulation_state(); },
              .load = [this](const StateDict& state) { load_accumulation_state(state); },
              .undo = [this]() -> std::function<void()> { return [this, before = scopes] { scopes = before; }; }},
             false);
  for (const Optimizer& optimizer : optimizers) {
    SavedParts::Part part = SavedParts::part_of(std::make_shared<Optimizer>(optimizer));
    part.per_rank = is_local;
    parts.add("optimizer", identities.optimizer(optimizer.inner()), std::move(part));
  }
  for (std::size_t i = 0; i < models.size(); ++i) {
    const auto module = models[i].module;
    parts.add(model_kind, identities.model(i),
              {.save = [module] { return model_state(*module); },
               .load = [module](const StateDict& state) { load_model_state(*module, state); },
               .per_rank = is_local,
               .own_values = [module](const StateDict& state) { return buffers_in(*module, state); }});
  }
  for (const PreparedReducer& one : reducers) {
    std::vector<ParameterKey> parameters;
    for (const auto& [parameter, reducer] : reducer_of) {
      if (reducer == one.reducer) parameters.push_back(parameter);
    }
    parts.windows.push_back(identities.owner_of(parameters));
  }
  return parts;
}

void Accelerator::State::end_registrations() {
  std::erase_if(loaders, [](const NamedLoader& loader) { return loader.cursor.expired(); });
  std::erase_if(registered, [](const NamedObject& one) { return one.lifetime.expired(); });
}

}  // namespace tutti
