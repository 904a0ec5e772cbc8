#pragma once
// What an Accelerator has prepared.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "train/precision_guard.h"
#include "tutti/checkpoint/checkpoint_writer.h"
#include "tutti/train/accelerator.h"

namespace tutti {

/// Every reducer owns the gradients of some parameters, no two the same.
struct Accelerator::Registry {
  using ParameterKey = const at::TensorImpl*;

  struct Model {
    std::shared_ptr<torch::nn::Module> module;
    std::vector<NamedParameter> parameters;
    bool replicated = false;
  };
  struct Synchronized {
    std::shared_ptr<Reducer> reducer;
    bool has_optimizer = false;
  };
  struct Named {
    std::string name;
    std::shared_ptr<Stateful> object;
  };

  std::vector<Model> models;
  std::vector<Synchronized> reducers;
  std::unordered_map<ParameterKey, std::shared_ptr<Reducer>> reducer_of;
  /// Of prepared models: walking through all parameters is too slow for every micro-batch.
  std::unordered_map<const torch::nn::Module*, std::vector<std::shared_ptr<Reducer>>> reducers_of_model;
  std::unordered_map<const Reducer*, std::int64_t> scopes;  // since the last window's end
  std::vector<Optimizer> optimizers;
  std::vector<std::shared_ptr<Stateful>> schedulers;
  std::vector<std::shared_ptr<Stateful>> loaders;
  std::vector<Named> registered;
  std::vector<Named> own;  // each rank's: what combines local steps
  std::shared_ptr<GradScaler> scaler;
  std::shared_ptr<PrecisionGuard> precision;
  std::unique_ptr<CheckpointWriter> writer;
  std::optional<Communicator> buffer_channel;      // made with the first model that has buffers
  std::vector<std::unique_ptr<Tracker>> trackers;  // on the main process

  /// Whether ranks take local steps, so that models and optimizers are each rank's own.
  bool local() const {
    return std::ranges::any_of(reducers, [](const Synchronized& one) { return one.reducer->local(); });
  }
  const NamedParameter* find(ParameterKey key) const;
  void add(const std::shared_ptr<Reducer>& reducer, const std::vector<NamedParameter>& parameters, bool has_optimizer);
  /// Forgets the reducers that hold any of `parameters` for a model without an optimizer, and `also`. Throws
  /// UsageError, and changes nothing, where another optimizer trains one of them.
  void release(const std::vector<NamedParameter>& parameters, const std::shared_ptr<Reducer>& also);
};

}  // namespace tutti
