#pragma once
// The parts of a checkpoint: which objects are saved, under which names, and which saved part belongs to which object.
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/accelerator_state.h"

namespace tutti {

/// The name of the shared part with the identities of the numbered parts.
inline constexpr const char* identities_part = "objects";
/// The name of the part of the loss scaler, which programs in fp16 have.
inline constexpr const char* scaler_part = "scaler";

/// The parts, in the order in which they are loaded.
struct Accelerator::State::SavedParts {
  struct Part {
    std::string name{};
    std::function<StateDict()> save{};
    std::function<void(const StateDict&)> load{};
    /// Returns a function that restores the object as it is now. Unset: load() of what save() returns. For an object
    /// that a running loop moves, because load() detaches it from the loop.
    std::function<std::function<void()>()> undo{};
    /// True if each rank has its own state. Rank 0's state is also written as a shared part, for other readers.
    bool per_rank = false;
    /// Selects the values of save() that may differ between ranks although `per_rank` is false: all of an object, a
    /// model's buffers. If they do, each rank's values are saved too. Unset: none.
    std::function<StateDict(const StateDict&)> own_values{};
    /// True if it is loaded before the windows, because it determines whether they are local.
    bool early = false;
    /// "model" for "model_1"; empty for a part whose name is unique.
    std::string kind{};
    /// A loader that is not for training.
    bool evaluation = false;
    /// What the object is, for match_saved().
    std::string identity{};
    /// Set by match(): the part of the checkpoint that is loaded into the object; nullopt if there is none.
    std::optional<std::string> saved_name{};
  };
  static Part part_of(std::shared_ptr<Stateful> object);
  /// Adds this rank's values of a part to its state, also if it has none.
  static void set_own(StateDict& per_rank, const std::string& part, const StateDict& values);
  /// What set_own() added to the state of a rank; nullopt if the rank loads the shared part.
  static std::optional<StateDict> own_in(const StateDict& per_rank, const std::string& part);
  /// The state to load where `own` is own_in() of this rank, and `shared` what rank 0 saved.
  static StateDict state_of(const Part& part, const StateDict& shared, const std::optional<StateDict>& own);

  std::vector<Part> all{};
  /// The identities of the reducers, whose windows are saved by rank.
  std::vector<std::string> windows{};
  /// Set by match(): the number of the saved window of each reducer.
  std::vector<std::size_t> saved_windows{};

  /// Adds a part with the next name of this kind: "model", "model_1", ...
  void add(const std::string& kind, const std::string& identity, Part part);
  /// The identities of all parts, as a part of their own.
  StateDict identities() const;
  /// Determines which parts of a checkpoint are loaded into which objects. Returns the names of the parts that no
  /// object uses. Throws CheckpointError if an object has no saved part, other than a callback of a Trainer, or a
  /// loader that is certain not to be one of the saved loaders.
  std::vector<std::string> match(const std::map<std::string, StateDict>& shared, const std::string& folder);
  /// Does the same for the windows, after match(), and puts their counts in `shared` in the order of this program.
  /// Throws CheckpointError if their numbers differ.
  void match_windows(std::map<std::string, StateDict>& shared);

  /// True for the part of a Trainer's callback. A resumed run may have other callbacks than the saved one.
  static bool is_callback(const std::string& part);
  /// True for a part that a resumed run may have or lack otherwise than the saved one: a callback's, the loss scaler's.
  static bool is_optional(const std::string& part) { return is_callback(part) || part == scaler_part; }
  static std::string window_part(std::size_t number);
  /// Name of the shared part with the gradients that a step has used.
  static std::string gradients_part(std::size_t number);
};

}  // namespace tutti
