#pragma once
// The Accelerator: the loop is written for one process and runs on any number of ranks. Names are Hugging Face
// Accelerate's. Every rank runs the same program: prepare(), accumulate(), synchronize(), clip_grad_norm_() and
// wait_for_everyone() are called by every rank, in the same order. One thread. The last argument `where` of some
// methods is filled in by the compiler: messages about ranks that wait name the line.
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

#include "tutti/amp/autocast.h"
#include "tutti/amp/grad_scaler.h"
#include "tutti/comm/communicator.h"
#include "tutti/core/call_site.h"
#include "tutti/core/logging.h"
#include "tutti/data/data_loader.h"
#include "tutti/data/stream_loader.h"
#include "tutti/detail/core/call_site_scope.h"
#include "tutti/detail/train/prepare_traits.h"
#include "tutti/optim/lr_schedule.h"
#include "tutti/optim/optimizer.h"
#include "tutti/optim/plateau.h"
#include "tutti/optim/scheduler.h"
#include "tutti/sync/named_parameter.h"
#include "tutti/sync/reducer_options.h"
#include "tutti/sync/sync_scopes.h"
#include "tutti/sync/sync_stats.h"
#include "tutti/tracking/tracker.h"
#include "tutti/train/accelerator_helpers.h"
#include "tutti/train/buffer_sync.h"
#include "tutti/train/gradient_accumulation_plugin.h"
#include "tutti/train/project_configuration.h"
#include "tutti/train/reproducible.h"

namespace tutti {

/// What an Accelerator is told. Every rank gives the same, but for `device` and `communicator`.
struct AcceleratorOptions {
  /// Micro-batches of one rank in an optimizer step. Excludes `gradient_accumulation_plugin`.
  int gradient_accumulation_steps = 1;
  /// How windows form, where more than their length must be said.
  std::optional<GradientAccumulationPlugin> gradient_accumulation_plugin{};
  /// What autocast() computes in. fp16 brings a loss scaler.
  Precision mixed_precision = Precision::no;
  /// Where this rank computes: data_loader() puts batches there, and the program its models (model->to(device())).
  /// at::kCUDA without a number is the device of the rank's place on its node; with CUDA a backend that is left open is
  /// nccl. Unset: batches stay where they are.
  std::optional<at::Device> device{};
  /// The scale of the loss under fp16; unused otherwise.
  GradScalerOptions grad_scaler{};
  /// Where checkpoints and metrics.jsonl go, and how many checkpoints stay. Unset: nothing is written by itself.
  ProjectConfiguration project{};
  /// How backward passes outside accumulate() decide whether they synchronize.
  SyncPolicy sync_policy = SyncPolicy::automatic;
  /// Which gradients travel together, and in which order.
  BucketOptions buckets{};
  /// Compare a sampled hash of the parameters whenever gradients are synchronized, so that replicas that drifted apart
  /// are a MismatchError. Turn it off where they may differ in their last bits (machines of different kinds).
  bool check_replicas = true;
  /// How fp32 gradients travel between nodes, for example bf16_codec(). Null: as they are.
  std::shared_ptr<const WireCodec> gradient_codec{};
  /// What optimizer steps do with the models' buffers.
  BufferSync buffer_sync = BufferSync::broadcast;
  /// The same bits on any number of ranks. It sets gradient_accumulation_steps and LibTorch's number of threads;
  /// loaders deal blocks_by_window, and their data must fill whole steps. Every pass stands inside accumulate(), and
  /// gradients are synchronized when clipping, step() or the scope's end needs them, not in backward. What would break
  /// the promise is a UsageError.
  std::optional<ReproducibleOptions> reproducible{};
  /// Step AdamW, Adam, SGD and Adagrad with fused kernels: see OptimizerOptions.
  bool fused_optimizers = true;
  /// Backend and deadlines. Unused where `communicator` is given.
  CommunicatorOptions communication{};
  /// A group that exists already, instead of one made from the launcher's variables.
  std::optional<Communicator> communicator{};
};

/// What one accumulate() scope is told.
struct AccumulateOptions {
  /// What this micro-batch weighs in the step's mean, for example its number of tokens where the loss is their sum.
  double weight = 1.0;
};

/// What save_state() is told. Every rank gives the same.
struct SaveStateOptions {
  /// The checkpoint's folder; it must not exist. Empty: the next automatic name in the project.
  std::filesystem::path folder{};
  /// Return as soon as everything is copied, and write while training goes on.
  bool asynchronous = false;
  /// What it is worth, for RetentionOptions::keep_best.
  std::optional<double> metric{};
};

/// One for a program: it joins the job, prepares models and optimizers, deals data, and opens the scopes in which a
/// loop accumulates. Its collectives (gather, gather_for_metrics, reduce, broadcast, ...) and helpers are in
/// accelerator_helpers.h.
class Accelerator : public AcceleratorHelpers<Accelerator> {
 public:
  /// Reads the launcher's variables and joins the job (see Communicator::connect). Throws UsageError for options that
  /// contradict.
  explicit Accelerator(const AcceleratorOptions& options = {});  // misspelt? AcceleratorOptions{...} names it
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  /// Prepares models (module holders or shared_ptrs to modules), optimizers and learning rate schedules, in any number
  /// and order; a schedule belongs to the optimizer before it. Returns a tuple with, for each argument: the same model
  /// (by reference for an lvalue: nothing wraps it), a tutti::Optimizer, a tutti::Scheduler (for PlateauOptions a
  /// tutti::ReduceLROnPlateau, whose metric is the mean over ranks). Rvalue optimizers are
  /// owned, lvalues referenced and must outlive this. Models, and the state of optimizers, become those of rank 0.
  /// After a parameter was added, frozen, unfrozen or moved, prepare the model and its optimizer (LibTorch's or the
  /// prepared one) again, between steps: earlier copies of the prepared optimizer and its schedules go on.
  /// Throws MismatchError when ranks prepare different models, UsageError for an optimizer with parameters outside the
  /// prepared models.
  template <typename... Ts>
  auto prepare(Ts&&... objects);

  /// A loader over this rank's shard of `dataset` (torch::data::datasets, or what has get_batch() and size()). A ready
  /// LibTorch loader cannot be taken over: its sampler is private. Every rank must call it, with a dataset of the same
  /// size and the same options: MismatchError otherwise. Where several ranks run backward passes in loops over loaders
  /// and nothing is prepared, the next batch is a UsageError.
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
  /// The same over a stream: what gives its next samples and does not know how many there are.
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

  /// For data that do not fill all ranks, read without repeats (even_batches = false): while the scope is open, loops
  /// that begin run as often on every rank. A rank whose samples have ended goes on with batches of the first ones;
  /// accumulate() counts them with weight 0 and backward() multiplies their loss by 0, so a step is the mean over what
  /// there really is. `even_batches`: instead of what the loaders' own options say. Every rank must open
  /// it. Throws UsageError while ranks take local steps.
  JoinScope join_uneven_inputs(std::optional<bool> even_batches = std::nullopt);
  /// Whether the present batch is such a one.
  bool on_filler_batch() const { return loaders_->innermost().filler; }

  /// One micro-batch of a window: `auto window = accelerator.accumulate(model);`. Inside, step(), clipping and
  /// schedules act at the window's end, which is each num_steps scopes and at the end of the data; the gradient is the
  /// mean over the window's micro-batches of all ranks, by weight. Takes one model or several.
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

  /// Under the returned scope backward passes keep the model's gradients to their own rank.
  NoSyncScope no_sync(const detail::model_argument auto& model, bool when = true) {
    return begin_no_sync(detail::module_of(model), when);
  }
  /// The next backward pass synchronizes the model's gradients, whatever scope it is in.
  void trigger_sync_in_backward(const detail::model_argument auto& model) { trigger_sync_of(detail::module_of(model)); }
  /// Synchronizes the model's gradients now. Every rank must call it.
  void synchronize(const detail::model_argument auto& model, const CallSite& where = CallSite::here()) {
    const CallSiteScope here(where);
    synchronize_of(detail::module_of(model));
  }
  /// Gives up the model's pending gradients and what they weigh, as if the window had not begun: where a loop breaks
  /// off an accumulation, or leaves out a batch that all ranks agreed to leave out. Every rank must call it, or none.
  void discard_accumulation(const detail::model_argument auto& model) {
    discard_accumulation_of(detail::module_of(model));
  }

  /// The scope in which forward passes and losses are computed in mixed_precision, on the device of the first prepared
  /// model. Without mixed precision it changes nothing.
  AutocastScope autocast();
  /// `auto loss = accelerator.autocast([&] { return loss_of(model->forward(x), y); });`
  template <typename Forward>
  requires std::invocable<Forward&>
  auto autocast(Forward&& forward) -> std::invoke_result_t<Forward&> {
    const AutocastScope scope = autocast();
    return forward();
  }

  /// loss.backward(). Outside accumulate() the loss is divided by gradient_accumulation_steps first, as Accelerate
  /// does; inside, the scope's weight does it. With fp16 the loss is scaled, and
  /// synchronization takes the scale out of the gradients again. Throws UsageError for a forward pass outside
  /// autocast() when mixed precision is set, and on several ranks where nothing is prepared.
  void backward(const at::Tensor& loss, const CallSite& where = CallSite::here());

  /// Clips the gradients together, after synchronizing what is missing (so their scale is right under fp16 too);
  /// returns their norm before. Inside accumulate() it acts at the window's end and returns nullopt before that. Throws
  /// UsageError for a norm that is not finite if asked to.
  std::optional<double> clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                                        double norm_type = 2.0, bool error_if_nonfinite = false,
                                        const CallSite& where = CallSite::here());
  /// Those of all the model's parameters.
  std::optional<double> clip_grad_norm_(const detail::model_argument auto& model, double max_norm,
                                        double norm_type = 2.0, bool error_if_nonfinite = false,
                                        const CallSite& where = CallSite::here()) {
    return clip_grad_norm_(detail::module_of(model).parameters(), max_norm, norm_type, error_if_nonfinite, where);
  }
  /// Limits every element of the gradients to [-clip_value, clip_value], when clip_grad_norm_() would act; whether it
  /// did.
  bool clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value,
                        const CallSite& where = CallSite::here());
  /// Those of all the model's parameters.
  bool clip_grad_value_(const detail::model_argument auto& model, double clip_value,
                        const CallSite& where = CallSite::here()) {
    return clip_grad_value_(detail::module_of(model).parameters(), clip_value, where);
  }

  /// What losses are multiplied by now: 1 but for fp16.
  double loss_scale() const;
  /// Whether a prepared optimizer's last step was skipped because its gradients had overflowed.
  bool optimizer_step_was_skipped() const;

  /// Saves `object` with the rest, under `name`. It is referenced and must outlive this, or shared.
  void register_for_checkpointing(const std::string& name, Stateful& object);
  /// The same for an object that is shared: it lives as long as this.
  void register_for_checkpointing(const std::string& name, std::shared_ptr<Stateful> object);

  /// Writes a checkpoint: prepared models, optimizers and schedules, the loss scaler, positions of loaders, pending
  /// gradients, each rank's random state, registered objects. Returns its folder. Every rank must call it, between
  /// backward passes. Waits for the one before it and throws what that one threw; also throws as write_checkpoint(),
  /// and UsageError where nothing is prepared or registered.
  std::filesystem::path save_state(const SaveStateOptions& options = {},  // misspelt? SaveStateOptions{...} names it
                                   const CallSite& where = CallSite::here());
  /// Blocks until an asynchronous save is on disk; throws what it threw.
  void wait_for_checkpoint();
  /// Goes on where save_state() was called: the same bits on the same number of ranks; on another number, every sample
  /// of the epoch once and the same step. What is prepared must be what was saved. All or nothing on all ranks: throws
  /// CheckpointError naming what does not fit, and leaves everything as it was. Every rank must call it.
  CheckpointInfo load_state(const std::filesystem::path& folder, const CallSite& where = CallSite::here());
  /// The newest checkpoint with an automatic name; nullopt, and nothing is changed, where there is none.
  std::optional<CheckpointInfo> load_latest_state(const CallSite& where = CallSite::here());

  // Tracking, on the main process; nothing happens on the others.
  /// One more place where log() writes. Before init_trackers().
  void add_tracker(std::unique_ptr<Tracker> tracker);
  /// Starts the trackers; with a project folder a JsonlTracker on DIR/metrics.jsonl is always among them. `step`: where
  /// a resumed run goes on.
  void init_trackers(const std::string& run, const Hyperparameters& hyperparameters = {}, std::int64_t step = 0);
  /// Writes `scalars` as values of optimizer step `step`, which must not decrease. After init_trackers(). Values are
  /// not averaged: reduce() them first.
  void log(const Scalars& scalars, std::int64_t step);
  /// Writes a text under `name`, such as a sample of the model.
  void log_text(const std::string& name, const std::string& text, std::int64_t step);

  /// Whether gradients are synchronized in the present accumulate() scope (the last one, outside): true on its window's
  /// last micro-batch.
  bool sync_gradients() const { return sync_gradients_; }
  /// Micro-batches of one rank in a window: what AcceleratorOptions or the plugin said; with `reproducible`, what
  /// follows from the number of ranks.
  int gradient_accumulation_steps() const { return plugin_.num_steps; }

  /// This rank's number, 0 .. num_processes() - 1; process_index() is Accelerate's name for it.
  int rank() const { return communicator_.rank(); }
  /// rank().
  int process_index() const { return rank(); }
  /// This rank's number on its node.
  int local_process_index() const { return communicator_.topology().local_rank; }
  /// Ranks in the job.
  int num_processes() const { return communicator_.size(); }
  /// AcceleratorOptions::device, numbered; the CPU where it is unset.
  at::Device device() const { return device_.value_or(at::kCPU); }
  /// Whether this is rank 0.
  bool is_main_process() const { return rank() == 0; }
  /// Whether this is the first rank of its node.
  bool is_local_main_process() const { return local_process_index() == 0; }
  /// Whether this is the rank with the highest number.
  bool is_last_process() const { return rank() + 1 == num_processes(); }
  /// Blocks until every rank has called it.
  void wait_for_everyone(const CallSite& where = CallSite::here()) const;
  /// Forgets what was prepared and every loader; the loss scaler, registered objects and trackers stay. Memory goes
  /// when the program lets go of its models and optimizers too. Every rank must call it; a rank that waits for another
  /// one's gradients then gets PeerError.
  void free_memory();
  /// Writes a line to standard output, on the main process only.
  void print(const std::string& line) const;

  /// Folder and retention, as the options had them.
  const ProjectConfiguration& project() const { return project_; }
  /// The user's own channel.
  const Communicator& communicator() const;
  /// Writes marked lines to standard error; its level is TUTTI_LOG_LEVEL.
  const Logger& logger() const { return logger_; }
  /// What synchronization did and cost on this rank, over all prepared models.
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
  /// Throws UsageError on all ranks where the newest checkpoint in the project's folder is of another run.
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
    // T is a reference for an lvalue, which stays the caller's; an rvalue moves into the tuple.
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
    return std::tuple<T>(std::forward<T>(object));  // else there would be a second error, less readable
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
  // Models first, wherever they stand: an optimizer's parameters must be known.
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
