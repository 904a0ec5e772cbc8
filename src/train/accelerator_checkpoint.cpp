// Accelerator: saving and loading checkpoints.
#include <functional>
#include <map>
#include <system_error>
#include <tuple>
#include <utility>

#include "checkpoint/agreement.h"
#include "checkpoint/damaged.h"
#include "checkpoint/file.h"
#include "checkpoint/folder_names.h"
#include "checkpoint/manifest.h"
#include "checkpoint/reservation.h"
#include "device/error_text.h"
#include "sync/window_resharding.h"
#include "train/accelerator_state.h"
#include "train/random_state.h"
#include "train/saved_parts.h"
#include "train/state_digest.h"
#include "tutti/core/error.h"
#include "tutti/detail/sync/reducer.h"
#include "tutti/detail/train/objects.h"

namespace tutti {

namespace {

/// What a rank tells the others in save_state().
struct SaveAnswer {
  std::vector<bool> used{};                      ///< by window: a step has used its gradients
  std::map<std::string, std::string> digests{};  ///< by part: of the values that may differ between ranks
  std::string folder{};                          ///< of an automatic name; rank 0 sets it

  std::string to_text() const { return pack(std::tuple(used, digests, folder)); }
  static SaveAnswer from_text(const std::string& text) {
    auto [used, digests, folder] =
        unpack<std::tuple<std::vector<bool>, std::map<std::string, std::string>, std::string>>(text);
    return {std::move(used), std::move(digests), std::move(folder)};
  }
};

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

}  // namespace

void Accelerator::State::require_savable(const std::string& call) const {
  if (per_rank.empty() && takes_local_steps()) throw refusal_after_local_sgd(call);
  if (!save_refusal.empty()) throw UsageError(call + " " + save_refusal);
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
  if (!object) throw UsageError("register_for_checkpointing: the object '" + name + "' is null");
  state_->end_registrations();
  if (std::ranges::find(state_->registered, name, &State::NamedObject::name) != state_->registered.end()) {
    throw UsageError("register_for_checkpointing: '" + name + "' is registered already");
  }
  std::weak_ptr<const void> lifetime = object->lifetime().watch();
  state_->registered.push_back({.name = name, .object = std::move(object), .lifetime = std::move(lifetime)});
}

std::filesystem::path Accelerator::save_state(const SaveStateOptions& options, const CallSite& where) {
  const CallSiteScope here(where);
  const bool automatic = options.folder.empty();
  if (automatic && state_->project.project_dir.empty()) {
    throw UsageError(
        "save_state() without a folder: set AcceleratorOptions::project.project_dir, or SaveStateOptions::folder");
  }
  state_->require_savable("save_state()");
  state_->end_registrations();
  if (state_->models.empty() && state_->optimizers.empty() && state_->registered.empty()) {
    throw UsageError(
        "save_state() with nothing prepared would save no model: pass model and optimizer to prepare() first");
  }
  CheckpointContent content{.metric = options.metric};
  std::vector<StateDict> windows;
  std::vector<std::pair<std::string, StateDict>> own_values;  // of this rank, by part
  std::shared_ptr<checkpoint::Reservation> reserved;          // of an automatic name, on the main process
  const auto texts = checkpoint::on_all_ranks(state_->prepare_communicator, "save_state", [&] {
    SaveAnswer answer;
    // First, because ranks communicate to end a pass that is open. An object that cannot be saved on one rank must not
    // keep that rank from it.
    for (const auto& known : state_->reducers) {
      windows.push_back(known.reducer->state_dict());
      content.step = std::max(content.step, windows.back().get<std::int64_t>("window.steps"));
      answer.used.push_back(windows.back().get<bool>("consumed") && !state_->local());
    }
    wait_for_checkpoint();  // here, because some ranks may have taken its error before
    const State::SavedParts parts = state_->saved_parts();
    content.shared.emplace(identities_part, parts.identities());
    for (const State::SavedParts::Part& part : parts.all) {
      StateDict state = part.save();
      if (part.per_rank) {
        State::SavedParts::set_own(content.per_rank, part.name, state);
      } else if (part.own_values && num_processes() > 1) {
        own_values.emplace_back(part.name, part.own_values(state));
      }
      content.shared.emplace(part.name, std::move(state));
    }
    content.per_rank.set("local", state_->local());
    content.per_rank.set("random", random_state());
    for (const auto& [name, values] : own_values) answer.digests.emplace(name, digest_of(values));
    if (!is_main_process()) return answer.to_text();
    if (state_->tracked_run && state_->tracked_run->step) {
      for (const auto& tracker : state_->trackers) tracker->flush();  // a resumed run does not log these steps again
    }
    if (!state_->run) state_->run = checkpoint::new_token();
    content.run = *state_->run;
    if (!automatic) return answer.to_text();
    const auto folder = state_->checkpoints_folder();
    reserved = std::make_shared<checkpoint::Reservation>(checkpoint::Reservation::take_next(folder, content.step));
    answer.folder = (folder / reserved->folder().filename()).string();
    return answer.to_text();
  });
  std::vector<SaveAnswer> answers;
  for (const std::string& text : texts) answers.push_back(SaveAnswer::from_text(text));
  for (const auto& [name, values] : own_values) {
    const auto is_equal = [&](const SaveAnswer& of_rank) {
      const auto digest = of_rank.digests.find(name);
      return digest != of_rank.digests.end() && digest->second == answers[0].digests[name];
    };
    if (!std::ranges::all_of(answers, is_equal)) State::SavedParts::set_own(content.per_rank, name, values);
  }
  for (std::size_t i = 0; i < windows.size(); ++i) {
    if (std::ranges::all_of(answers, [i](const SaveAnswer& of_rank) { return of_rank.used.at(i); })) {
      auto [local, gradients] = split(windows[i]);
      windows[i] = std::move(local);
      content.shared.emplace(State::SavedParts::gradients_part(i), std::move(gradients));
    }
    content.per_rank.set(State::SavedParts::window_part(i), windows[i]);
  }
  const std::filesystem::path folder =
      automatic ? std::filesystem::path(answers[0].folder) : std::filesystem::absolute(options.folder);
  const RetentionOptions retention = automatic ? state_->project.retention : RetentionOptions{};
  if (!state_->writer)
    state_->writer = std::make_unique<CheckpointWriter>(state_->communicator.duplicate("checkpoint"));
  state_->writer->start(folder, content, retention, std::move(reserved));
  if (!options.asynchronous) state_->writer->wait();
  return folder;
}

void Accelerator::wait_for_checkpoint() {
  if (state_->writer) state_->writer->wait();
}

CheckpointInfo Accelerator::load_state(const std::filesystem::path& folder, const CallSite& where) {
  const CallSiteScope here(where);
  return state_->load(folder);
}

CheckpointInfo Accelerator::State::load(const std::filesystem::path& folder) {
  Checkpoint saved;
  bool saved_local = false;
  SavedParts parts = saved_parts();
  std::vector<std::string> left_out;
  checkpoint::on_all_ranks(prepare_communicator, "load_state", [&] {
    if (writer) writer->wait();
    const int saved_by = read_checkpoint_info(folder).world_size;
    saved = saved_by == num_processes() ? read_checkpoint(folder, std::vector<int>{rank()}) : read_checkpoint(folder);
    saved_local = saved.per_rank.at(saved_by == num_processes() ? rank() : 0).get<bool>("local");
    const auto require_same_ranks = [&] {
      if (saved_by == num_processes()) return;
      throw CheckpointError(folder.string() + " was saved by " + std::to_string(saved_by) +
                            " ranks that took local steps or have ignored_parameters, each with its own state: start "
                            "the same number of ranks, or save after LocalSGD's finish()");
    };
    if (saved_local) require_same_ranks();
    left_out = parts.match(saved.shared, folder.string());
    if (!per_rank.empty()) require_same_ranks();  // each rank has the state of an algorithm of local steps
    for (const std::string& name : left_out) {
      // A loader ends with the scope in which it was made, for example an evaluation's.
      if (name == "loader" || name.starts_with("loader_") || SavedParts::is_optional(name)) continue;
      const bool is_local_sgd = name == "local_sgd" || name.starts_with("local_sgd_");
      throw CheckpointError(
          folder.string() + " holds '" + name + "', which this program has not prepared or registered: " +
          (is_local_sgd ? "create LocalSGD before load_state()" : "prepare and register the objects that were saved") +
          ". A program without training reads the model alone: tutti::load_model(*net, folder / "
          "\"model.safetensors\")");
    }
    parts.match_windows(saved.shared);
    return std::string();
  });

  std::vector<std::function<void()>> undo;
  const auto load_one = [&undo](const SavedParts::Part& part, const StateDict& state) {
    std::function<void()> restore;
    if (part.undo) {
      restore = part.undo();
    } else {
      restore = [load = part.load, before = copy_to_cpu(part.save())] { load(before); };
    }
    part.load(state);  // changes nothing if it throws
    undo.push_back(std::move(restore));
  };
  try {
    checkpoint::on_all_ranks(prepare_communicator, "load_state", [&] {
      const bool same_size = saved.info.world_size == num_processes();
      const auto load_part = [&](const SavedParts::Part& part) {
        // A rank that trains the model of all ranks does not load one that it trained alone.
        const bool has_own = same_size && (part.per_rank || !saved_local);
        const auto own = has_own ? SavedParts::own_in(saved.per_rank.at(rank()), *part.saved_name) : std::nullopt;
        load_one(part, SavedParts::state_of(part, saved.shared.at(*part.saved_name), own));
      };
      for (const SavedParts::Part& part : parts.all) {
        if (part.early) load_part(part);
      }
      for (std::size_t i = 0; i < reducers.size(); ++i) {
        const std::size_t number = parts.saved_windows[i];
        std::vector<StateDict> windows;
        for (const StateDict& of_rank : saved.per_rank) {
          windows.push_back(of_rank.part(SavedParts::window_part(number)));
        }
        StateDict window = same_size ? windows.at(rank()) : reshard_windows(windows, rank(), num_processes());
        const auto used = saved.shared.find(SavedParts::gradients_part(number));
        if (used != saved.shared.end()) window = with_gradients(std::move(window), used->second);
        const auto reducer = reducers[i].reducer;
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
        load_one({.save = before, .load = restore}, window);
      }
      if (static_cast<std::size_t>(rank()) < saved.per_rank.size()) {
        load_one({.save = random_state, .load = load_random_state}, saved.per_rank[rank()].part("random"));
      }
      SavedParts now = saved_parts();  // an early part may have made the ranks local
      for (std::size_t i = 0; i < now.all.size(); ++i) {
        now.all[i].saved_name = parts.all[i].saved_name;
        if (!now.all[i].early && now.all[i].saved_name) load_part(now.all[i]);
      }
      // A window holds the loss scale of the saved program, which may have had another precision.
      for (const PreparedReducer& one : reducers) one.reducer->set_loss_scale(scaler ? scaler->scale() : 1);
      return std::string();
    });
  } catch (...) {
    for (auto step = undo.rbegin(); step != undo.rend(); ++step) {
      try {
        (*step)();
      } catch (const std::exception& error) {
        // Only a load() of the program fails here. The first error is the one to throw.
        logger.error(std::string("load_state() failed, and one object keeps what it loaded: ") + error_text(error));
      }
    }
    throw;
  }
  sync_gradients = has_loaded_state = true;
  if (!is_main_process()) return saved.info;
  if (stands_in(folder, checkpoints_folder())) run = saved.info.run;
  for (const std::string& name : left_out) {
    if (SavedParts::is_callback(name)) {
      logger.warning(folder.string() + " holds '" + name +
                     "', the state of a callback that this program does not have; the state is left out");
      continue;
    }
    if (name == scaler_part) {
      logger.warning(folder.string() +
                     " was saved by a run in fp16; this program has no loss scale, which is left out");
      continue;
    }
    const StateDict& loader = saved.shared.at(name);
    const bool within_an_epoch =
        loader.contains("segments.batches") && !loader.get<std::vector<std::int64_t>>("segments.batches").empty();
    const std::string what = folder.string() + " holds the position of '" + name +
                             "', a loader that this program does not have; the position is left out";
    if (within_an_epoch) {
      logger.warning(what);
    } else {
      logger.info(what);
    }
  }
  for (const SavedParts::Part& part : parts.all) {
    const auto has_it = [&](const StateDict& of_rank) {
      return SavedParts::own_in(of_rank, *part.saved_name).has_value();
    };
    if (!part.saved_name || saved.info.world_size == num_processes() || std::ranges::none_of(saved.per_rank, has_it))
      continue;
    logger.warning(folder.string() + " holds values of '" + *part.saved_name + "' that differed between the " +
                   std::to_string(saved.info.world_size) + " ranks that saved it: all ranks have loaded rank 0's");
  }
  for (const SavedParts::Part& part : parts.all) {
    if (part.saved_name || part.evaluation) continue;
    if (SavedParts::is_callback(part.name)) {
      logger.warning(folder.string() + " holds no '" + part.name + "': the callback begins without a saved state");
      continue;
    }
    if (part.name == scaler_part) {
      logger.warning(folder.string() + " was not saved by a run in fp16: the loss scale begins at its initial value");
      continue;
    }
    logger.warning(folder.string() + " holds no position of '" + part.name +
                   "', a loader that this program has in addition to the saved ones; its position is unchanged");
  }
  return saved.info;
}

std::optional<CheckpointInfo> Accelerator::load_latest_state(const CallSite& where) {
  const CallSiteScope here(where);
  if (state_->project.project_dir.empty()) {
    throw UsageError("load_latest_state(): set AcceleratorOptions::project.project_dir");
  }
  // Whether it has a manifest, and the name: of each folder with a checkpoint's name, newest first.
  using Found = std::vector<std::pair<bool, std::string>>;
  const auto answers = checkpoint::on_all_ranks(state_->prepare_communicator, "load_latest_state", [&] {
    Found found;
    wait_for_checkpoint();
    if (!is_main_process()) return pack(found);
    for (const auto& folder : CheckpointFolder(state_->checkpoints_folder()).folders()) {
      found.emplace_back(checkpoint::name_exists(folder / checkpoint::manifest_name), folder.filename().string());
    }
    return pack(found);
  });
  std::string skipped;
  bool any_manifest = false;
  for (const auto& [has_manifest, name] : unpack<Found>(answers[0])) {
    any_manifest = any_manifest || has_manifest;
    try {
      return state_->load(state_->checkpoints_folder() / name);
    } catch (const checkpoint::DamagedCheckpointError& error) {
      // Thrown on all ranks, so all ranks try the same checkpoint next.
      skipped += (skipped.empty() ? "" : "; ") + std::string(error.what());
      if (is_main_process()) {
        state_->logger.warning("load_latest_state() skips the checkpoint " + name + ": " + error.what());
      }
    }
  }
  if (!any_manifest) return std::nullopt;
  throw CheckpointError("no checkpoint in " + state_->checkpoints_folder().string() + " is whole: " + skipped);
}

void Accelerator::State::require_same_run(const std::string& caller, const std::string& remedy) const {
  checkpoint::on_all_ranks(prepare_communicator, "project folder", [&] {
    if (!is_main_process()) return std::string();
    for (const auto& folder : CheckpointFolder(checkpoints_folder()).folders()) {
      try {
        if (read_checkpoint_info(folder).run == run) break;
        throw UsageError(caller + ": " + folder.string() +
                         " belongs to another run, and this run would write among its checkpoints: " + remedy +
                         ", or choose another project_dir");
      } catch (const checkpoint::DamagedCheckpointError&) {
        // The run of a damaged checkpoint is unknown; the next older one tells.
      }
    }
    return std::string();
  });
}

}  // namespace tutti
