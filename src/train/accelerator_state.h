#pragma once
// The private state of an Accelerator. Each parameter's gradient is owned by exactly one reducer. The members are
// destroyed in reverse order: prepared objects before the communicators that they use.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "train/precision_guard.h"
#include "train/scope_counter.h"
#include "train/unprepared_training_detector.h"
#include "tutti/core/error.h"
#include "tutti/detail/checkpoint/checkpoint_writer.h"
#include "tutti/detail/sync/named_parameter.h"
#include "tutti/detail/sync/reducer.h"
#include "tutti/train/accelerator.h"

namespace tutti {

struct Accelerator::State {
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
    bool ignored = false;  ///< of ignored_parameters: takes local steps
  };
  struct PreparedSchedule {
    std::shared_ptr<Stateful> object;
    torch::optim::Optimizer* optimizer = nullptr;
  };
  struct NamedLoader {
    std::weak_ptr<Stateful> cursor;
    std::string description;
    bool evaluation = false;
  };
  struct NamedObject {
    std::string name{};
    std::shared_ptr<Stateful> object{};  // may refer to an object of the program, without owning it
    std::weak_ptr<const void> lifetime{};
  };
  struct SavedParts;

  /// Joins the job. Throws as the constructor of Accelerator does.
  explicit State(const AcceleratorOptions& options);

  int rank() const { return communicator.rank(); }
  int num_processes() const { return communicator.size(); }
  bool is_main_process() const { return rank() == 0; }

  /// Throws UsageError where a checkpoint would not be that of a step. `call`: the call of the program.
  void require_savable(const std::string& call) const;
  /// True if models and optimizers differ between ranks: in local steps, and with ignored parameters in an optimizer.
  bool local() const;
  /// True while LocalSGD takes local steps.
  bool takes_local_steps() const;
  /// Why `call` is refused after an exception has ended LocalSGD: no call makes the replicas equal again.
  static UsageError refusal_after_local_sgd(const std::string& call);
  /// True for AcceleratorOptions::ignored_parameters.
  bool is_ignored(const at::Tensor& parameter) const { return ignored.contains(parameter.unsafeGetTensorImpl()); }
  const NamedParameter* find(ParameterKey key) const;
  /// Name in checkpoints of the model with this parameter: "model", "model_1", ...
  std::string model_of(ParameterKey key) const;
  static std::string numbered(const std::string& name, std::size_t index);
  /// The parameters of `optimizer`, with unique names. Throws UsageError if one is in no prepared model.
  std::vector<NamedParameter> trained_by(const torch::optim::Optimizer& optimizer) const;

  void add(const PreparedReducer& prepared, const std::vector<NamedParameter>& parameters);
  /// True if an optimizer steps the parameters of `reducer`, one of `reducers`.
  bool has_optimizer(const std::shared_ptr<Reducer>& reducer) const;
  /// Removes `also`, and the reducers without an optimizer that own any of `parameters`. Throws UsageError and changes
  /// nothing if another optimizer trains one of them.
  void release(const std::vector<NamedParameter>& parameters, const std::vector<std::shared_ptr<Reducer>>& also);
  /// The reducers of these models or parameters, without duplicates. An ignored parameter may have none. Throws
  /// UsageError for a parameter of no prepared model.
  std::vector<std::shared_ptr<Reducer>> reducers_of(const std::vector<detail::ModelRef>& models) const;
  std::vector<std::shared_ptr<Reducer>> reducers_of(const std::vector<at::Tensor>& parameters) const;
  /// Makes every backward pass synchronize all parts of its model, and of models that share an optimizer with it.
  void connect_parts() const;
  /// Makes every optimizer's step synchronize the buffers of the models that it trains.
  void watch_buffers();
  /// Makes every synchronization also compare the parameters of other reducers that no optimizer steps.
  void compare_parameters_without_optimizer();
  /// Throws MismatchError on all ranks if ranks have other options that a step depends on. Compares them once.
  void compare_options();

  ScopeCounter::Rule scope_rule() const {
    return {.num_steps = plugin.num_steps, .sync_with_dataloader = plugin.sync_with_dataloader};
  }
  /// Warns, once, of a scope that ends a window although an earlier scope on the same batch was taken for the last.
  void warn_of_extra_window();
  /// Warns, once, if the loop at `position` has ended inside a window.
  void warn_of_open_window(const LoaderPosition& position);
  /// Warns, once, if so many steps were skipped that the loss scale is below 1.
  void warn_of_skipped_steps();
  StateDict accumulation_state() const;
  void load_accumulation_state(const StateDict& state);

  /// Returns false in the middle of a window. At its end runs the synchronization that is still due and returns true.
  bool gradients_are_ready(const std::vector<at::Tensor>& parameters) const;
  /// Must be called after the gradients of `parameters` were limited.
  void note_clipping(const std::vector<at::Tensor>& parameters, const char* name, double limit) const;
  /// The type of the devices on which forward passes compute: an accelerator if a prepared model has parameters there.
  c10::DeviceType device_of_forward() const;
  /// Seeds the random generators for micro-batch `scope` of this rank's block (ReproducibleOptions).
  void seed_micro_batch(const Reducer& reducer, std::int64_t scope) const;

  SavedParts saved_parts();
  /// Forgets loaders and registered objects that the program has destroyed.
  void end_registrations();
  /// Loads the checkpoint `folder` on all ranks, or changes nothing. Throws checkpoint::DamagedCheckpointError on
  /// all ranks if it is not whole, and CheckpointError if it does not fit the program.
  CheckpointInfo load(const std::filesystem::path& folder);
  /// Throws UsageError on the main process if there are trackers that no run has started. `caller`: "log".
  void require_tracked_run(const char* caller) const;
  void start_tracked_run(std::int64_t step);
  /// `caller` writes a value of `step`: starts the trackers if the step of their run is unset. Throws UsageError.
  void start_with_value(const char* caller, std::int64_t step);
  std::filesystem::path checkpoints_folder() const { return project.project_dir / "checkpoints"; }
  /// Throws UsageError on all ranks if the newest checkpoint in the project's folder belongs to another run. `caller`
  /// and `remedy` are parts of the message.
  void require_same_run(const std::string& caller, const std::string& remedy) const;

  // Options.
  GradientAccumulationPlugin plugin;
  Precision mixed_precision;
  bool fused_optimizers;
  GradScalerOptions grad_scaler;
  BufferSync buffer_sync;
  std::vector<std::string> ignored_names;
  std::optional<ReproducibleOptions> reproducible;
  std::optional<at::Device> device;
  ProjectConfiguration project;
  ReducerOptions reducer_options;
  bool options_compared = false;

  Communicator communicator;
  Communicator prepare_communicator;
  Logger logger;
  std::shared_ptr<LoaderStack> loader_stack = std::make_shared<LoaderStack>();
  LoaderAgreement loader_agreement;
  std::int64_t loaders_made = 0;
  std::optional<std::uint64_t> loader_seed;  // from set_seed()
  bool sync_gradients = true;

  // Prepared objects.
  std::vector<Model> models;
  std::vector<PreparedReducer> reducers;
  std::unordered_map<ParameterKey, std::shared_ptr<Reducer>> reducer_of;
  std::unordered_set<ParameterKey> ignored;
  /// Cache for prepared models: iterating over all parameters in every micro-batch is too slow.
  std::unordered_map<const torch::nn::Module*, std::vector<std::shared_ptr<Reducer>>> reducers_of_model;
  std::unordered_map<const Reducer*, ScopeCounter> scopes;
  bool warned_of_extra_window = false;
  bool warned_of_open_window = false;
  bool warned_of_skipped_steps = false;
  std::vector<Optimizer> optimizers;
  std::vector<PreparedSchedule> schedulers;
  std::vector<NamedLoader> loaders;
  std::vector<NamedObject> registered;
  /// Set on several ranks while loaders exist and nothing is prepared. Unset once the program has used communicator(),
  /// because the program may then synchronize gradients itself.
  std::shared_ptr<UnpreparedTrainingDetector> unprepared_training;
  bool communicator_exposed = false;
  std::vector<NamedObject> per_rank;  // the algorithms of local steps, each with the class of its model as its name
  std::shared_ptr<GradScaler> scaler;
  std::shared_ptr<PrecisionGuard> precision;
  std::unique_ptr<CheckpointWriter> writer;
  /// On the main process: the run of the checkpoints. Unset until a checkpoint is saved or loaded.
  std::optional<std::string> run;
  std::string save_refusal;  ///< why no state can be saved now; empty if it can
  bool has_trained = false;  ///< a Trainer's run in the project's folder has ended
  std::weak_ptr<const void> last_trainer;
  std::optional<Communicator> buffer_communicator;  // since a prepared model has buffers
  std::vector<std::unique_ptr<Tracker>> trackers;   // on the main process
  /// Those of `trackers` that write to the project's folder: one of each, however often runs start.
  Tracker* project_metrics = nullptr;
  Tracker* project_tensorboard = nullptr;
  /// Set by init_trackers().
  struct TrackedRun {
    std::string name;
    Hyperparameters hyperparameters;
    std::optional<std::int64_t> step{};  ///< unset until the trackers start
    bool has_fit = false;                ///< a Trainer's fit() has begun since
  };
  std::optional<TrackedRun> tracked_run;
  bool has_loaded_state = false;
};

}  // namespace tutti
