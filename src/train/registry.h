#pragma once
// The prepared objects of an Accelerator.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "train/precision_guard.h"
#include "train/unprepared_training_detector.h"
#include "tutti/detail/checkpoint/checkpoint_writer.h"
#include "tutti/detail/sync/reducer.h"
#include "tutti/train/accelerator.h"

namespace tutti {

/// Each parameter's gradient is owned by exactly one reducer.
struct Accelerator::Registry {
  using ParameterKey = const at::TensorImpl*;

  struct Model {
    std::shared_ptr<torch::nn::Module> module;
    std::vector<NamedParameter> parameters;
    /// The model's name in messages; empty with a single model.
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
  /// Cache for prepared models: iterating over all parameters in every micro-batch is too slow.
  std::unordered_map<const torch::nn::Module*, std::vector<std::shared_ptr<Reducer>>> reducers_of_model;
  std::unordered_map<const Reducer*, std::int64_t> scopes;  // number of scopes since the last window's end
  std::vector<Optimizer> optimizers;
  std::vector<std::shared_ptr<Stateful>> schedulers;
  std::vector<std::shared_ptr<Stateful>> loaders;
  std::vector<NamedObject> registered;
  /// Set on several ranks while loaders exist and nothing is prepared. Unset once the program has used communicator(),
  /// because the program may then synchronize gradients itself.
  std::shared_ptr<UnpreparedTrainingDetector> unprepared_training;
  bool communicator_exposed = false;
  std::vector<NamedObject> per_rank;  // objects with a state per rank: the algorithms of local steps
  std::shared_ptr<GradScaler> scaler;
  std::shared_ptr<PrecisionGuard> precision;
  std::unique_ptr<CheckpointWriter> writer;
  /// On the main process: the run of the checkpoints. Unset until a checkpoint is saved or loaded.
  std::optional<std::string> run;
  std::optional<Communicator> buffer_communicator;  // made with the first model that has buffers
  std::vector<std::unique_ptr<Tracker>> trackers;   // on the main process

  /// True if ranks take local steps, so that models and optimizers differ between ranks.
  bool local() const {
    return std::ranges::any_of(reducers, [](const PreparedReducer& one) { return one.reducer->local(); });
  }
  const NamedParameter* find(ParameterKey key) const;
  /// Name in checkpoints of the model with this parameter: "model", "model_1", ...
  std::string model_of(ParameterKey key) const;
  static std::string numbered(const std::string& name, std::size_t index);
  void add(const std::shared_ptr<Reducer>& reducer, const std::vector<NamedParameter>& parameters, bool has_optimizer);
  /// Removes `also`, and the reducers without an optimizer that own any of `parameters`. Throws UsageError and changes
  /// nothing if another optimizer trains one of them.
  void release(const std::vector<NamedParameter>& parameters, const std::shared_ptr<Reducer>& also);
};

}  // namespace tutti
