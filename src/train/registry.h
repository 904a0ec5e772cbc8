#pragma once
// What an Accelerator has prepared.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "train/precision_guard.h"
#include "train/unprepared_training_detector.h"
#include "tutti/checkpoint/checkpoint_writer.h"
#include "tutti/sync/reducer.h"
#include "tutti/train/accelerator.h"

namespace tutti {

/// Every reducer owns the gradients of some parameters, no two the same.
struct Accelerator::Registry {
  using ParameterKey = const at::TensorImpl*;

  struct Model {
    std::shared_ptr<torch::nn::Module> module;
    std::vector<NamedParameter> parameters;
    /// In errors; empty while there is one model only.
    std::shared_ptr<std::string> error_name = std::make_shared<std::string>();
    bool replicated = false;
  };
  struct PreparedReducer {
    std::shared_ptr<Reducer> reducer;
    bool has_optimizer = false;
  };
  struct NamedObject {
    std::string name;
    std::shared_ptr<Stateful> object;
  };

  std::vector<Model> models;
  std::vector<PreparedReducer> reducers;
  std::unordered_map<ParameterKey, std::shared_ptr<Reducer>> reducer_of;
  /// Of prepared models: walking through all parameters is too slow for every micro-batch.
  std::unordered_map<const torch::nn::Module*, std::vector<std::shared_ptr<Reducer>>> reducers_of_model;
  std::unordered_map<const Reducer*, std::int64_t> scopes;  // since the last window's end
  std::vector<Optimizer> optimizers;
  std::vector<std::shared_ptr<Stateful>> schedulers;
  std::vector<std::shared_ptr<Stateful>> loaders;
  std::vector<NamedObject> registered;
  /// While loaders are there and nothing is prepared, on several ranks; and not where the program has asked for the
  /// communicator, since it may synchronize by itself.
  std::shared_ptr<UnpreparedTrainingDetector> unprepared_training;
  bool communicator_exposed = false;
  std::vector<NamedObject> per_rank;  // each rank's: what combines local steps
  std::shared_ptr<GradScaler> scaler;
  std::shared_ptr<PrecisionGuard> precision;
  std::unique_ptr<CheckpointWriter> writer;
  /// On the main process: which run the checkpoints are of. Unset before the first save of a run that has loaded none.
  std::optional<std::string> run;
  std::optional<Communicator> buffer_communicator;  // made with the first model that has buffers
  std::vector<std::unique_ptr<Tracker>> trackers;   // on the main process

  /// Whether ranks take local steps, so that models and optimizers are each rank's own.
  bool local() const {
    return std::ranges::any_of(reducers, [](const PreparedReducer& one) { return one.reducer->local(); });
  }
  const NamedParameter* find(ParameterKey key) const;
  /// What checkpoints call the model that holds it: "model", "model_1", ...
  std::string model_of(ParameterKey key) const;
  static std::string numbered(const std::string& name, std::size_t index);
  void add(const std::shared_ptr<Reducer>& reducer, const std::vector<NamedParameter>& parameters, bool has_optimizer);
  /// Forgets the reducers that hold any of `parameters` for a model without an optimizer, and `also`. Throws
  /// UsageError, and changes nothing, where another optimizer trains one of them.
  void release(const std::vector<NamedParameter>& parameters, const std::shared_ptr<Reducer>& also);
};

}  // namespace tutti
