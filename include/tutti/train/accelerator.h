#pragma once
// The Accelerator: a training loop written for one process runs on any number of ranks. Names are Hugging Face
// Accelerate's. Every rank runs the same program and must call prepare(), accumulate(), synchronize(),
// clip_grad_norm_() and wait_for_everyone() in the same order. Not thread safe. The compiler fills in the last argument
// `where` of some methods, so that messages name the line of the call.
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <concepts>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/amp/grad_scaler.h"
#include "tutti/comm/communicator.h"
#include "tutti/core/logging.h"
#include "tutti/data/data_loader.h"
#include "tutti/data/stream_loader.h"
#include "tutti/detail/amp/autocast.h"
#include "tutti/detail/core/call_site.h"
#include "tutti/detail/core/call_site_scope.h"
#include "tutti/detail/sync/named_parameter.h"
#include "tutti/detail/sync/sync_scopes.h"
#include "tutti/detail/train/prepare_traits.h"
#include "tutti/optim/lr_schedule.h"
#include "tutti/optim/optimizer.h"
#include "tutti/optim/plateau.h"
#include "tutti/optim/scheduler.h"
#include "tutti/sync/reducer_options.h"
#include "tutti/sync/sync_stats.h"
#include "tutti/tracking/tracker.h"
#include "tutti/train/accelerator_helpers.h"
#include "tutti/train/buffer_sync.h"
#include "tutti/train/gradient_accumulation_plugin.h"
#include "tutti/train/project_configuration.h"
#include "tutti/train/reproducible.h"

namespace tutti {

/// Options of an Accelerator. Every rank must pass the same, except for `device` and `communicator`.
struct AcceleratorOptions {
  /// Micro-batches of one rank in an optimizer step. Excludes `gradient_accumulation_plugin`.
  int gradient_accumulation_steps = 1;
  /// How accumulation windows form, if more than their length is to be set.
  std::optional<GradientAccumulationPlugin> gradient_accumulation_plugin{};
  /// The precision of autocast(). fp16 adds a loss scaler.
  Precision mixed_precision = Precision::no;
  /// The device of this rank. data_loader() moves batches to it; the program moves its models (model->to(device())).
  /// at::kCUDA without a number is the device with the rank's local rank as its number. With CUDA the backend "auto" is
  /// nccl. Unset: batches are not moved.
  std::optional<at::Device> device{};
  /// Options of the loss scaler; used with fp16 only.
  GradScalerOptions grad_scaler{};
  /// The folder of checkpoints and metrics.jsonl, and how many checkpoints are kept. Unset: nothing is written unless
  /// the program names a folder.
  ProjectConfiguration project{};
  /// How backward passes outside accumulate() decide whether they synchronize.
  SyncPolicy sync_policy = SyncPolicy::automatic;
  /// How gradients are grouped into buckets, and the order of the buckets.
  BucketOptions buckets{};
  /// Compare a sampled hash of the parameters at every synchronization. Replicas that differ are a MismatchError. Turn
  /// it off if replicas may differ in their last bits (machines of different kinds).
  bool check_replicas = true;
  /// Wire codec of fp32 gradients between nodes, for example bf16_codec(). Null: fp32.
  std::shared_ptr<const WireCodec> gradient_codec{};
  /// How optimizer steps synchronize the models' buffers.
  BufferSync buffer_sync = BufferSync::broadcast;
  /// Train to the same bits on any number of ranks. This sets gradient_accumulation_steps and LibTorch's number of
  /// threads. Loaders shard blocks_by_window, and their data must fill whole steps. Every backward pass must run inside
  /// accumulate(). Gradients are synchronized when clipping, step() or the scope's end needs them, not in backward.
  /// Throws UsageError for options and calls that would change the bits.
  std::optional<ReproducibleOptions> reproducible{};
  /// Step AdamW, Adam, SGD and Adagrad with fused kernels: see OptimizerOptions.
  bool fused_optimizers = true;
  /// Backend and timeouts. Unused if `communicator` is set.
  CommunicatorOptions communication{};
  /// An existing group to use, instead of connecting with the launcher's variables.
  std::optional<Communicator> communicator{};
};

/// Options of one accumulate() scope.
struct AccumulateOptions {
  /// Weight of this micro-batch in the step's mean, for example its number of tokens if the loss is a sum over tokens.
  double weight = 1.0;
};

/// Options of save_state(). Every rank must pass the same.
struct SaveStateOptions {
  /// The checkpoint's folder; it must not exist. Empty: the next automatic name in the project.
  std::filesystem::path folder{};
  /// Return as soon as the state is copied, and write it from a background thread.
  bool asynchronous = false;
  /// The metric of this checkpoint, for RetentionOptions::keep_best.
  std::optional<double> metric{};
};

/// Joins the job, prepares models and optimizers, makes loaders, and opens the scopes in which a loop accumulates. A
/// program has one Accelerator. Its collectives (gather, gather_for_metrics, reduce, broadcast, ...) and helpers are
/// in accelerator_helpers.h.
class Accelerator : public AcceleratorHelpers<Accelerator> {
 public:
  /// Reads the launcher's variables and joins the job (see Communicator::connect). Throws UsageError for options that
  /// contradict one another.
  explicit Accelerator(const AcceleratorOptions& options = {});  // misspelt? AcceleratorOptions{...} names it
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  /// Prepares models (module holders or shared_ptrs to modules), optimizers and learning rate schedules, in any number
  /// and order. A schedule belongs to the optimizer before it. Every rank must call it. Returns a tuple with, for each
  /// argument:
  /// - the same model, by reference for an lvalue; models are not wrapped;
  /// - a tutti::Optimizer;
  /// - a tutti::Scheduler, or for PlateauOptions a tutti::ReduceLROnPlateau, whose metric is the mean over ranks.
  /// Rvalue optimizers are owned. Lvalue optimizers are referenced and must outlive the Accelerator. Models and the
  /// state of optimizers are broadcast from rank 0. After a parameter was added, frozen, unfrozen or moved, prepare the
  /// model and its optimizer (LibTorch's or the prepared one) again, between steps. Earlier copies of the prepared
  /// optimizer and of its schedules stay valid. Throws MismatchError if ranks prepare different models, and UsageError
  /// if an optimizer has parameters outside the prepared models.
  template <typename... Ts>
  auto prepare(Ts&&... objects);

  /// Returns a loader over this rank's shard of `dataset` (torch::data::datasets, or a class with get_batch() and
  /// size()). A LibTorch loader is not accepted, because its sampler is private. Every rank must call it, with a
  /// dataset of the same size and the same options: MismatchError otherwise. If several ranks run backward passes in
  /// loops over loaders and nothing is prepared, the next batch throws UsageError.
  template <typename Dataset>
  requires(!StreamDataset<Dataset>) DataLoader<Dataset> data_loader(Dataset dataset,  // DataLoaderOptions{...} names it
                                                                    const DataLoaderOptions& options = {},
                                                                    const CallSite& where = CallSite::here()) {
    const CallSiteScope here(where);
    const LoaderGroup group = loader_group();
    auto loader = make_loader(options, [&](const DataLoaderOptions& placed) {
      auto made = std::make_unique<DataLoader<Dataset>>(std::move(dataset), reproducible(placed), group);
      require_whole_steps(made->cursor()->options());
      return made;
    });
    return std::move(*loader);
  }
  /// The same over a stream: a dataset that returns its next samples and has no known size.
  template <StreamDataset Dataset>
  StreamLoader<Dataset> data_loader(Dataset dataset,  // misspelt? StreamLoaderOptions{...} names it
                                    const StreamLoaderOptions& options = {}, const CallSite& where = CallSite::here()) {
    const CallSiteScope here(where);
    const LoaderGroup group = loader_group();
    auto loader = make_loader(options, [&](const StreamLoaderOptions& placed) {
      refuse_reproducible_stream();
      return std::make_unique<StreamLoader<Dataset>>(std::move(dataset), placed, group);
    });
    return std::move(*loader);
  }

  /// For data that do not fill all ranks and are read without repeats (even_batches = false). Loops that begin while
  /// the scope is open have the same number of batches on every rank. A rank that has run out of data continues with
  /// filler batches of its first samples. accumulate() gives them weight 0 and backward() multiplies their loss by 0,
  /// so a step is the mean over the actual data. `even_batches` overrides the loaders' own option. Every rank must open
  /// the scope. Throws UsageError while ranks take local steps.
  JoinScope join_uneven_inputs(std::optional<bool> even_batches = std::nullopt);
  /// True if the current batch is filler: this rank has run out of data.
  bool on_filler_batch() const { return loaders_->innermost().filler; }

  /// Opens a scope for one micro-batch of a window: `auto window = accelerator.accumulate(model);`. Inside the scope,
  /// step(), clipping and schedules act at the window's end only: after num_steps scopes, or at the end of the data.
  /// The gradient is the weighted mean over the window's micro-batches of all ranks. Takes one or more models.
  template <typename... Models>
  requires(sizeof...(Models) > 0 && (detail::model_argument<Models> && ...)) AccumulateScope
      accumulate(const Models&... models) {
    return accumulate({}, models...);
  }
  /// The same with a weight.
  template <typename... Models>
  requires(sizeof...(Models) > 0 && (detail::model_argument<Models> && ...)) AccumulateScope
      accumulate(const AccumulateOptions& options, const Models&... models) {
    return begin_accumulate({&detail::module_of(models)...}, options);
  }
  /// `accelerator.accumulate(model, {.weight = tokens})`: the same for one model.
  AccumulateScope accumulate(const detail::model_argument auto& model,  // misspelt? AccumulateOptions{...} names it
                             const AccumulateOptions& options) {
    return accumulate(options, model);
  }

  /// Backward passes under the returned scope do not synchronize the model's gradients.
  NoSyncScope no_sync(const detail::model_argument auto& model, bool when = true) {
    return begin_no_sync(detail::module_of(model), when);
  }
  /// The next backward pass synchronizes the model's gradients, in any scope.
  void trigger_sync_in_backward(const detail::model_argument auto& model) { trigger_sync_of(detail::module_of(model)); }
  /// Synchronizes the model's gradients now. Every rank must call it.
  void synchronize(const detail::model_argument auto& model, const CallSite& where = CallSite::here()) {
    const CallSiteScope here(where);
    synchronize_of(detail::module_of(model));
  }
  /// Discards the model's pending gradients and their weights, as if the window had not begun. Use it if a loop leaves
  /// an accumulation early, or skips a batch that all ranks agreed to skip. Either all ranks or none must call it.
  void discard_accumulation(const detail::model_argument auto& model) {
    discard_accumulation_of(detail::module_of(model));
  }

  /// Opens a scope in which forward passes and losses run in mixed_precision, on the device of the first prepared
  /// model. Without mixed precision it has no effect.
  AutocastScope autocast();
  /// `auto loss = accelerator.autocast([&] { return loss_of(model->forward(x), y); });`
  template <typename Forward>
  requires std::invocable<Forward&>
  auto autocast(Forward&& forward) -> std::invoke_result_t<Forward&> {
    const AutocastScope scope = autocast();
    return forward();
  }

  /// Runs loss.backward(). Outside accumulate() the loss is first divided by gradient_accumulation_steps, as in
  /// Accelerate; inside, the scope's weight replaces the division. With fp16 the loss is scaled, and the
  /// synchronization unscales the gradients. Throws UsageError for a forward pass outside autocast() if mixed precision
  /// is set, and on several ranks if nothing is prepared.
  void backward(const at::Tensor& loss, const CallSite& where = CallSite::here());

  /// Synchronizes gradients that are not synchronized yet, clips their total norm to `max_norm`, and returns the norm
  /// before clipping. Under fp16 the norm is that of the unscaled gradients. Inside accumulate() it acts at the
  /// window's end and returns nullopt before. Throws UsageError for a norm that is not finite if `error_if_nonfinite`
  /// is set.
  std::optional<double> clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                                        double norm_type = 2.0, bool error_if_nonfinite = false,
                                        const CallSite& where = CallSite::here());
  /// The same for all parameters of the model.
  std::optional<double> clip_grad_norm_(const detail::model_argument auto& model, double max_norm,
                                        double norm_type = 2.0, bool error_if_nonfinite = false,
                                        const CallSite& where = CallSite::here()) {
    return clip_grad_norm_(detail::module_of(model).parameters(), max_norm, norm_type, error_if_nonfinite, where);
  }
  /// Clamps every element of the gradients to [-clip_value, clip_value], under the conditions of clip_grad_norm_().
  /// Returns whether it clipped.
  bool clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value,
                        const CallSite& where = CallSite::here());
  /// The same for all parameters of the model.
  bool clip_grad_value_(const detail::model_argument auto& model, double clip_value,
                        const CallSite& where = CallSite::here()) {
    return clip_grad_value_(detail::module_of(model).parameters(), clip_value, where);
  }

  /// The current loss scale; 1 without fp16.
  double loss_scale() const;
  /// True if a prepared optimizer skipped its last step because gradients had overflowed.
  bool optimizer_step_was_skipped() const;

  /// Adds `object` to checkpoints under `name`. The object is referenced and must outlive the Accelerator.
  void register_for_checkpointing(const std::string& name, Stateful& object);
  /// The same for a shared object. The Accelerator keeps a reference to it.
  void register_for_checkpointing(const std::string& name, std::shared_ptr<Stateful> object);

  /// Writes a checkpoint: prepared models, optimizers and schedules, the loss scaler, positions of loaders, pending
  /// gradients, each rank's random state, and registered objects. Returns its folder. Every rank must call it, between
  /// backward passes. Waits for the previous asynchronous save and rethrows its exception. Throws as write_checkpoint()
  /// does, and UsageError if nothing is prepared or registered.
  std::filesystem::path save_state(const SaveStateOptions& options = {},  // misspelt? SaveStateOptions{...} names it
                                   const CallSite& where = CallSite::here());
  /// Blocks until an asynchronous save is on disk. Rethrows its exception.
  void wait_for_checkpoint();
  /// Restores the state of save_state(). Training on the same number of ranks then continues to the same bits. On
  /// another number of ranks, every sample of the epoch is read once and the step stays the same. The program must have
  /// prepared the objects that were saved. Every rank must call it. If a part does not match, all ranks throw
  /// CheckpointError with its name, and no state is changed on any rank.
  CheckpointInfo load_state(const std::filesystem::path& folder, const CallSite& where = CallSite::here());
  /// Loads the newest checkpoint with an automatic name. Returns nullopt and changes nothing if there is none.
  std::optional<CheckpointInfo> load_latest_state(const CallSite& where = CallSite::here());

  // Tracking, on the main process. The calls have no effect on the other ranks.
  /// Adds a tracker for log(). Must be called before init_trackers().
  void add_tracker(std::unique_ptr<Tracker> tracker);
  /// Starts the trackers. With a project folder they include a JsonlTracker on DIR/metrics.jsonl. `step`: the step at
  /// which a resumed run continues.
  void init_trackers(const std::string& run, const Hyperparameters& hyperparameters = {}, std::int64_t step = 0);
  /// Writes `scalars` as values of optimizer step `step`, which must not decrease. Must be called after
  /// init_trackers(). Values are not averaged over ranks: call reduce() first.
  void log(const Scalars& scalars, std::int64_t step);
  /// Writes a text under `name`, such as a sample of the model.
  void log_text(const std::string& name, const std::string& text, std::int64_t step);

  /// True on a window's last micro-batch, whose backward pass synchronizes gradients. Refers to the current
  /// accumulate() scope; outside, to the last one.
  bool sync_gradients() const { return sync_gradients_; }
  /// Micro-batches of one rank in a window, from AcceleratorOptions or the plugin. With `reproducible`, it depends on
  /// the number of ranks.
  int gradient_accumulation_steps() const { return plugin_.num_steps; }

  /// This rank, 0 .. num_processes() - 1. process_index() is Accelerate's name for it.
  int rank() const { return communicator_.rank(); }
  /// rank().
  int process_index() const { return rank(); }
  /// The local rank: this rank's number on its node.
  int local_process_index() const { return communicator_.topology().local_rank; }
  /// The world size.
  int num_processes() const { return communicator_.size(); }
  /// AcceleratorOptions::device with its number; the CPU if it is unset.
  at::Device device() const { return device_.value_or(at::kCPU); }
  /// True on rank 0.
  bool is_main_process() const { return rank() == 0; }
  /// True on the node leader.
  bool is_local_main_process() const { return local_process_index() == 0; }
  /// True on the highest rank.
  bool is_last_process() const { return rank() + 1 == num_processes(); }
  /// A barrier: blocks until every rank has called it.
  void wait_for_everyone(const CallSite& where = CallSite::here()) const;
  /// Releases the prepared models and optimizers and every loader. The loss scaler, registered objects and trackers
  /// stay. Memory is freed once the program has released its models and optimizers too. Every rank must call it. A rank
  /// that waits for the gradients of another rank then throws PeerError.
  void free_memory();
  /// Writes a line to standard output, on the main process only.
  void print(const std::string& line) const;

  /// Folder and retention from the options.
  const ProjectConfiguration& project() const { return project_; }
  /// The communicator for the program's own collectives.
  const Communicator& communicator() const;
  /// Writes lines with a prefix to standard error. Its level is TUTTI_LOG_LEVEL.
  const Logger& logger() const { return logger_; }
  /// Counts and times of synchronizations on this rank, over all prepared models.
  SyncStats stats() const;

 private:
  friend class LocalSGD;
  friend class TrainerContext;
  friend class AcceleratorHelpers<Accelerator>;
  struct Registry;

  void prepare_model(std::shared_ptr<torch::nn::Module> module);
  double mean_over_ranks(double value) const;
  void register_scheduler(std::shared_ptr<Stateful> scheduler);
  void register_loader(std::shared_ptr<Stateful> cursor);
  LoaderGroup loader_group();
  std::optional<LoaderPosition> loop_position() const;  // of the innermost loop that runs
  void check_same_loader(const std::function<std::string()>& make);
  template <typename Options, typename Make>
  auto make_loader(Options options, Make make);
  Optimizer prepare_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer);
  std::vector<NamedParameter> trained_by(const torch::optim::Optimizer& optimizer) const;
  void complete_models();
  void watch_buffers();
  DataLoaderOptions reproducible(DataLoaderOptions options) const;
  void require_whole_steps(const ShardOptions& options) const;
  void refuse_reproducible_stream() const;
  void seed_micro_batch(const Reducer& reducer, std::int64_t scope);

  template <typename T>
  auto prepare_one(T&& object, std::optional<Optimizer>& previous);

  AccumulateScope begin_accumulate(const std::vector<const torch::nn::Module*>& modules,
                                   const AccumulateOptions& options);
  NoSyncScope begin_no_sync(const torch::nn::Module& module, bool when);
  void trigger_sync_of(const torch::nn::Module& module);
  void synchronize_of(const torch::nn::Module& module);
  void discard_accumulation_of(const torch::nn::Module& module);
  bool gradients_are_ready(const std::vector<at::Tensor>& parameters);
  std::vector<std::shared_ptr<Reducer>> reducers_of(const std::vector<const torch::nn::Module*>& modules) const;
  std::vector<std::shared_ptr<Reducer>> reducers_of(const std::vector<at::Tensor>& parameters) const;
  struct SavedParts;
  SavedParts saved_parts() const;
  std::filesystem::path checkpoints_folder() const;
  /// Throws UsageError on all ranks if the newest checkpoint in the project's folder belongs to another run.
  void require_same_run(const std::string& who, const std::string& how_to_go_on) const;

  GradientAccumulationPlugin plugin_;
  ReducerOptions reducer_options_;
  Precision mixed_precision_;
  bool fused_optimizers_;
  BufferSync buffer_sync_;
  std::optional<ReproducibleOptions> reproducible_;
  std::optional<at::Device> device_;
  ProjectConfiguration project_;
  Communicator communicator_;
  Communicator prepare_communicator_;
  Logger logger_;
  std::shared_ptr<LoaderStack> loaders_ = std::make_shared<LoaderStack>();
  LoaderAgreement loader_agreement_;
  std::optional<std::uint64_t> loader_seed_;  // from set_seed()
  std::unique_ptr<Registry> registry_;
  bool sync_gradients_ = true;
};

template <typename T>
auto Accelerator::prepare_one(T&& object, std::optional<Optimizer>& previous) {
  using Object = std::remove_cvref_t<T>;
  if constexpr (detail::model_argument<Object>) {
    // For an lvalue T is a reference, and the caller keeps the object. An rvalue is moved into the tuple.
    return std::tuple<T>(std::forward<T>(object));
  } else if constexpr (std::same_as<Object, Optimizer>) {
    previous.emplace(prepare_optimizer(object.optimizer_));
    return std::tuple<Optimizer>(*previous);
  } else if constexpr (detail::optimizer_argument<Object>) {
    previous.emplace(prepare_optimizer(detail::share_optimizer(std::forward<T>(object))));
    return std::tuple<Optimizer>(*previous);
  } else if constexpr (std::same_as<Object, PlateauOptions>) {
    if (!previous) throw UsageError("prepare(): a schedule belongs to the optimizer before it, and there is none");
    ReduceLROnPlateau scheduler(*previous, object, [this](double metric) { return mean_over_ranks(metric); });
    register_scheduler(std::make_shared<ReduceLROnPlateau>(scheduler));
    return std::tuple<ReduceLROnPlateau>(scheduler);
  } else if constexpr (std::derived_from<Object, torch::nn::Module>) {
    static_assert(!std::derived_from<Object, torch::nn::Module>,
                  "prepare() takes the module's holder or a shared_ptr to it: prepare(net), not prepare(*net)");
    return std::tuple<T>(std::forward<T>(object));  // without a return there would be a second, less readable error
  } else {
    static_assert(!std::derived_from<Object, torch::optim::LRScheduler>,
                  "prepare(): a LibTorch scheduler keeps its position to itself and cannot be saved: use tutti's "
                  "schedule of the same name (step, reduce_lr_on_plateau, ...)");
    static_assert(std::convertible_to<Object, LrSchedule>,
                  "prepare() takes models (module holders or shared_ptr to a module), optimizers and schedules; a "
                  "LibTorch data loader cannot be re-sharded: use data_loader(dataset)");
    if (!previous) throw UsageError("prepare(): a schedule belongs to the optimizer before it, and there is none");
    Scheduler scheduler(*previous, std::forward<T>(object),
                        {.rule = plugin_.schedule_rule, .num_processes = num_processes()});
    register_scheduler(std::make_shared<Scheduler>(scheduler));
    return std::tuple<Scheduler>(scheduler);
  }
}

template <typename... Ts>
auto Accelerator::prepare(Ts&&... objects) {
  // Models first, in any position: the parameters of an optimizer must belong to a prepared model.
  const auto model_first = [this]<typename T>(const T& object) {
    if constexpr (detail::model_argument<T>) prepare_model(detail::shared_module_of(object));
  };
  (model_first(objects), ...);
  std::optional<Optimizer> previous;
  // Braces, because function arguments have no order of evaluation.
  std::tuple<decltype(prepare_one(std::forward<Ts>(objects), previous))...> parts{
      prepare_one(std::forward<Ts>(objects), previous)...};
  complete_models();
  return std::apply([](auto&&... part) { return std::tuple_cat(std::move(part)...); }, std::move(parts));
}

template <typename Options, typename Make>
auto Accelerator::make_loader(Options options, Make make) {
  if (!options.device) options.device = device_;
  if constexpr (requires { options.seed = loader_seed_; }) {
    if (!options.seed) options.seed = loader_seed_;
  }
  decltype(make(options)) loader;
  check_same_loader([&] {
    loader = make(options);
    return loader->description();
  });
  register_loader(loader->cursor());
  return loader;
}

}  // namespace tutti
