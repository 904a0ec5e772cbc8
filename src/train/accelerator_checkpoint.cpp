// Accelerator: saving and loading checkpoints.
#include <array>
#include <cinttypes>
#include <cstdio>
#include <functional>
#include <random>
#include <set>
#include <system_error>
#include <utility>

#include "checkpoint/agreement.h"
#include "checkpoint/file.h"
#include "sync/window_resharding.h"
#include "train/accelerator_state.h"
#include "train/random_state.h"
#include "tutti/checkpoint/model_file.h"
#include "tutti/core/error.h"
#include "tutti/detail/sync/reducer.h"

namespace tutti {

namespace {

StateDict model_state(const torch::nn::Module& model) {
  StateDict state;
  for (const auto& [name, tensor] : named_tensors_of(model)) state.set(name, tensor);
  return state;
}

void load_model_state(const torch::nn::Module& model, const StateDict& state) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, value] : state.values()) tensors.emplace(name, state.get<at::Tensor>(name));
  load_model(model, tensors);
}

/// A unique identifier for a new run.
std::string new_run() {
  std::random_device device;
  std::array<char, 17> text{};
  const std::uint64_t number = (std::uint64_t{device()} << 32) | device();
  std::snprintf(text.data(), text.size(), "%016" PRIx64, number);
  return text.data();
}

bool stands_in(const std::filesystem::path& checkpoint, const std::filesystem::path& folder) {
  std::error_code ignored;
  return std::filesystem::equivalent(checkpoint::normalized(checkpoint).parent_path(), folder, ignored);
}

/// The state of a window, split into the part of each rank and the gradients that a step has used, which are equal on
/// all ranks.
struct SplitWindow {
  StateDict local;
  StateDict gradients;
};

SplitWindow split(const StateDict& window) {
  SplitWindow result;
  for (const auto& [name, value] : window.values()) {
    const bool of_gradient = name.starts_with("gradient.") || name.starts_with("averaged.");
    (of_gradient ? result.gradients : result.local).set(name, value);
  }
  return result;
}

StateDict with_gradients(StateDict window, const StateDict& gradients) {
  for (const auto& [name, value] : gradients.values()) window.set(name, value);
  return window;
}

std::string window_part(std::size_t reducer) {
  return "window_" + std::to_string(reducer);
}

/// Name of the shared part with the gradients that a step has used.
std::string gradients_part(std::size_t reducer) {
  return "used_gradients_" + std::to_string(reducer);
}

}  // namespace

/// The parts of a checkpoint, in the order in which they are loaded.
struct Accelerator::State::SavedParts {
  struct Part {
    std::string name;
    std::function<StateDict()> save;
    std::function<void(const StateDict&)> load;
    /// True if each rank has its own state. Rank 0's state is also written as a shared part, for other readers.
    bool per_rank = false;
    /// True if it is loaded before the windows, because it determines whether they are local.
    bool early = false;
  };
  std::vector<Part> all;

  void add(std::string name, std::shared_ptr<Stateful> object, bool has_state_per_rank = false) {
    all.push_back({.name = std::move(name),
                   .save = [object] { return object->state_dict(); },
                   .load = [object](const StateDict& state) { object->load_state_dict(state); },
                   .per_rank = has_state_per_rank});
  }
  const Part* find(const std::string& name) const {
    const auto part = std::ranges::find(all, name, &Part::name);
    return part == all.end() ? nullptr : &*part;
  }
};

Accelerator::State::SavedParts Accelerator::State::saved_parts() {
  SavedParts parts;
  const auto add_all = [&parts](const std::string& name, const std::vector<std::shared_ptr<Stateful>>& objects) {
    for (std::size_t i = 0; i < objects.size(); ++i) parts.add(numbered(name, i), objects[i]);
  };
  add_all("scheduler", schedulers);
  add_all("loader", loaders);
  const bool is_local = local();
  if (scaler) parts.add("scaler", scaler, is_local);
  for (const auto& [name, object] : registered) parts.add("object_" + name, object);
  for (const auto& [name, object] : per_rank) {
    parts.add(name, object, true);
    parts.all.back().early = true;
  }
  parts.all.push_back({.name = "accumulation",
                       .save = [this] { return accumulation_state(); },
                       .load = [this](const StateDict& state) { load_accumulation_state(state); }});
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    parts.add(numbered("optimizer", i), std::make_shared<Optimizer>(optimizers[i]), is_local);
  }
  for (std::size_t i = 0; i < models.size(); ++i) {
    const auto module = models[i].module;
    parts.all.push_back({.name = numbered("model", i),
                         .save = [module] { return model_state(*module); },
                         .load = [module](const StateDict& state) { load_model_state(*module, state); },
                         .per_rank = is_local});
  }
  return parts;
}

void Accelerator::register_for_checkpointing(const std::string& name, Stateful& object) {
  register_for_checkpointing(name, std::shared_ptr<Stateful>(std::shared_ptr<void>(), &object));
}

void Accelerator::register_for_checkpointing(const std::string& name, std::shared_ptr<Stateful> object) {
  const bool plain = !name.empty() && std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
  if (!plain)
    throw UsageError("register_for_checkpointing: '" + name + "' must consist of letters, digits, '_' and '-'");
  if (std::ranges::find(state_->registered, name, &State::NamedObject::name) != state_->registered.end()) {
    throw UsageError("register_for_checkpointing: '" + name + "' is registered already");
  }
  state_->registered.push_back({.name = name, .object = std::move(object)});
}

std::filesystem::path Accelerator::save_state(const SaveStateOptions& options, const CallSite& where) {
  const CallSiteScope here(where);
  wait_for_checkpoint();
  const bool automatic = options.folder.empty();
  if (automatic && state_->project.project_dir.empty()) {
    throw UsageError(
        "save_state() without a folder: set AcceleratorOptions::project.project_dir, or SaveStateOptions::folder");
  }
  if (state_->models.empty() && state_->optimizers.empty() && state_->registered.empty()) {
    throw UsageError(
        "save_state() with nothing prepared would save no model: pass model and optimizer to prepare() first");
  }
  CheckpointContent content{.metric = options.metric};
  std::vector<StateDict> windows;
  const auto answers = checkpoint::on_all_ranks(state_->prepare_communicator, "save_state", [&] {
    for (const State::SavedParts::Part& part : state_->saved_parts().all) {
      StateDict state = part.save();
      if (part.per_rank) content.per_rank.set(part.name, state);
      content.shared.emplace(part.name, std::move(state));
    }
    content.per_rank.set("local", state_->local());
    content.per_rank.set("random", random_state());
    std::string used;  // one character per window: 'y' if a step has used its gradients, else 'n'
    for (const auto& known : state_->reducers) {
      windows.push_back(known.reducer->state_dict());
      content.step = std::max(content.step, windows.back().get<std::int64_t>("window.steps"));
      used += windows.back().get<bool>("consumed") && !state_->local() ? 'y' : 'n';
    }
    if (!is_main_process()) return used;
    if (!state_->run) state_->run = new_run();
    content.run = *state_->run;
    return used +
           (automatic ? CheckpointFolder(state_->checkpoints_folder()).next(content.step).string() : std::string());
  });
  for (std::size_t i = 0; i < windows.size(); ++i) {
    if (std::ranges::all_of(answers, [i](const std::string& of_rank) { return of_rank.at(i) == 'y'; })) {
      auto [local, gradients] = split(windows[i]);
      windows[i] = std::move(local);
      content.shared.emplace(gradients_part(i), std::move(gradients));
    }
    content.per_rank.set(window_part(i), windows[i]);
  }
  const std::filesystem::path folder =
      automatic ? std::filesystem::path(answers[0].substr(windows.size())) : options.folder;
  const RetentionOptions retention = automatic ? state_->project.retention : RetentionOptions{};
  if (!state_->writer)
    state_->writer = std::make_unique<CheckpointWriter>(state_->communicator.duplicate("checkpoint"));
  state_->writer->start(folder, content, retention);
  if (!options.asynchronous) state_->writer->wait();
  return folder;
}

void Accelerator::wait_for_checkpoint() {
  if (state_->writer) state_->writer->wait();
}

CheckpointInfo Accelerator::load_state(const std::filesystem::path& folder, const CallSite& where) {
  const CallSiteScope here(where);
  wait_for_checkpoint();
  Checkpoint saved;
  bool saved_local = false;
  const State::SavedParts parts = state_->saved_parts();
  checkpoint::on_all_ranks(state_->prepare_communicator, "load_state", [&] {
    const int saved_by = read_checkpoint_info(folder).world_size;
    saved = saved_by == num_processes() ? read_checkpoint(folder, std::vector<int>{rank()}) : read_checkpoint(folder);
    saved_local = saved.per_rank.at(saved_by == num_processes() ? rank() : 0).get<bool>("local");
    if ((saved_local || !state_->per_rank.empty()) && saved_by != num_processes()) {
      throw CheckpointError(folder.string() + " was saved by " + std::to_string(saved_by) +
                            " ranks that took local steps or have ignored_parameters, each with its own state: start "
                            "the same number of ranks, or save after LocalSGD's finish()");
    }
    for (const State::SavedParts::Part& part : parts.all) {
      if (!saved.shared.contains(part.name)) {
        throw CheckpointError(folder.string() + " has no '" + part.name +
                              "': prepare and register the objects that were saved");
      }
    }
    std::set<std::string> of_windows;
    for (std::size_t i = 0; i < state_->reducers.size(); ++i) of_windows.insert(gradients_part(i));
    for (const auto& [name, state] : saved.shared) {
      if (parts.find(name) == nullptr && !of_windows.contains(name)) {
        throw CheckpointError(folder.string() + " holds '" + name +
                              "', which this program has not prepared or registered: prepare and register the objects "
                              "that were saved");
      }
    }
    return std::string();
  });

  std::vector<std::function<void()>> undo;
  const auto load = [&undo](const auto& save, const auto& load_from, const StateDict& state) {
    const StateDict before = copy_to_cpu(save());
    load_from(state);  // changes nothing if it throws
    undo.push_back([load_from, before] { load_from(before); });
  };
  try {
    checkpoint::on_all_ranks(state_->prepare_communicator, "load_state", [&] {
      const auto load_part = [&](const State::SavedParts::Part& part, bool from_this_rank) {
        load(part.save, part.load,
             from_this_rank ? saved.per_rank.at(rank()).part(part.name) : saved.shared.at(part.name));
      };
      for (const State::SavedParts::Part& part : parts.all) {
        if (part.early) load_part(part, true);
      }
      for (std::size_t i = 0; i < state_->reducers.size(); ++i) {
        std::vector<StateDict> windows;
        for (const StateDict& of_rank : saved.per_rank) windows.push_back(of_rank.part(window_part(i)));
        const bool same_size = saved.info.world_size == num_processes();
        StateDict window = same_size ? windows.at(rank()) : reshard_windows(windows, rank(), num_processes());
        const auto used = saved.shared.find(gradients_part(i));
        if (used != saved.shared.end()) window = with_gradients(std::move(window), used->second);
        const auto reducer = state_->reducers[i].reducer;
        // A program may load a checkpoint to recover from invalid gradients. Then there is no state to restore.
        const auto before = [reducer] {
          try {
            return reducer->state_dict();
          } catch (const UsageError&) {
            return StateDict();
          }
        };
        const auto restore = [reducer](const StateDict& state) {
          if (!state.empty()) reducer->load_state_dict(state);
        };
        load(before, restore, window);
      }
      if (static_cast<std::size_t>(rank()) < saved.per_rank.size()) {
        load(random_state, load_random_state, saved.per_rank[rank()].part("random"));
      }
      for (const State::SavedParts::Part& part : state_->saved_parts().all) {
        if (!part.early) load_part(part, saved_local && part.per_rank);
      }
      return std::string();
    });
  } catch (...) {
    for (auto step = undo.rbegin(); step != undo.rend(); ++step) (*step)();
    throw;
  }
  state_->sync_gradients = true;
  if (is_main_process() && stands_in(folder, state_->checkpoints_folder())) state_->run = saved.info.run;
  return saved.info;
}

std::optional<CheckpointInfo> Accelerator::load_latest_state(const CallSite& where) {
  const CallSiteScope here(where);
  if (state_->project.project_dir.empty()) {
    throw UsageError("load_latest_state(): set AcceleratorOptions::project.project_dir");
  }
  const auto newest = checkpoint::on_all_ranks(state_->prepare_communicator, "load_latest_state", [&] {
    const auto info = is_main_process() ? CheckpointFolder(state_->checkpoints_folder()).newest() : std::nullopt;
    return info ? info->folder.string() : std::string();
  });
  const std::string& folder = newest[0];
  if (folder.empty()) return std::nullopt;
  return load_state(folder, where);
}

void Accelerator::State::require_same_run(const std::string& caller, const std::string& remedy) const {
  checkpoint::on_all_ranks(prepare_communicator, "project folder", [&] {
    if (!is_main_process()) return std::string();
    const auto newest = CheckpointFolder(checkpoints_folder()).newest();
    if (newest && newest->run != run) {
      throw UsageError(caller + ": " + newest->folder.string() +
                       " belongs to another run, and this run would write among its checkpoints: " + remedy +
                       ", or choose another project_dir");
    }
    return std::string();
  });
}

}  // namespace tutti
