#pragma once
// The Accelerator: a training loop written for one process runs on any number of ranks. Methods have the names of
// Hugging Face Accelerate. Every rank runs the same program. "Every rank must call it" in a method's comment means: in
// the same order relative to the other such methods. Not thread safe. The compiler fills in the last argument `where`
// of some methods, so that messages name the line of the call.
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/core/logging.h"
#include "tutti/data/data_loader.h"
#include "tutti/data/stream_loader.h"
#include "tutti/detail/amp/autocast.h"
#include "tutti/detail/core/call_site.h"
#include "tutti/detail/sync/sync_scopes.h"
#include "tutti/detail/train/prepare_traits.h"
#include "tutti/device/late_value.h"
#include "tutti/optim/optimizer.h"
#include "tutti/optim/plateau.h"
#include "tutti/optim/scheduler.h"
#include "tutti/sync/sync_stats.h"
#include "tutti/tracking/tracker.h"
#include "tutti/train/accelerator_helpers.h"
#include "tutti/train/accelerator_options.h"

namespace tutti {

/// Joins the job, prepares models and optimizers, makes loaders, and opens scopes for gradient accumulation. A
/// program has one Accelerator. Its collectives (gather, gather_for_metrics, reduce, broadcast, ...) and helpers are
/// in accelerator_helpers.h. An argument `model` is a module holder, a shared_ptr to a module, or a module.
class Accelerator : public AcceleratorHelpers<Accelerator> {
 public:
  /// Reads the launcher's variables and joins the job. Every rank must call it. Throws UsageError for options that
  /// contradict one another, and what Communicator::connect() throws.
  explicit Accelerator(const AcceleratorOptions& options = {});
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  /// Prepares models (module holders or shared_ptrs to modules), optimizers and learning rate schedules, in any number
  /// and order. A schedule belongs to the optimizer before it. Every rank must call it. Returns a tuple with, for each
  /// argument:
  /// - the same model, by reference for an lvalue; models are not wrapped;
  /// - a tutti::Optimizer;
  /// - a tutti::Scheduler, or for PlateauOptions a tutti::ReduceLROnPlateau, whose metric is the mean over ranks.
  /// Rvalue optimizers are owned. Lvalue optimizers are referenced: they must live until the last step or save, so a
  /// function that prepares a local optimizer passes it with std::move(). Models and the state of optimizers are
  /// broadcast from rank 0. After a parameter was added, frozen, unfrozen or moved, prepare the model and its optimizer
  /// (LibTorch's or the prepared one) again, between steps. The state of Adam, AdamW, SGD, RMSprop and Adagrad then
  /// moves to the devices and dtypes of the parameters. Earlier copies of the prepared optimizer and of its schedules
  /// stay valid. Throws MismatchError if ranks prepare different models, and UsageError if an optimizer has parameters
  /// outside the prepared models.
  template <typename... Ts>
  auto prepare(Ts&&... objects);

  /// Returns a loader over this rank's shard of `dataset` (torch::data::datasets, or a class with get_batch() and
  /// size()). A LibTorch loader is not accepted, because its sampler is private. Every rank must call it. Throws
  /// MismatchError if the sizes of the ranks' datasets or their options differ. In a job of several ranks, a loop that
  /// runs a backward pass although nothing is prepared throws UsageError at its next batch.
  template <typename Dataset>
  requires(!StreamDataset<Dataset>) DataLoader<Dataset> data_loader(Dataset dataset,
                                                                    const DataLoaderOptions& options = {},
                                                                    const CallSite& where = CallSite::here());
  /// Returns a loader over a stream: a dataset that returns its next samples and has no known size. Every rank must
  /// call it. Throws MismatchError if the ranks' options differ.
  template <StreamDataset Dataset>
  StreamLoader<Dataset> data_loader(Dataset dataset, const StreamLoaderOptions& options = {},
                                    const CallSite& where = CallSite::here());

  /// Opens a scope for loaders that repeat no samples (even_batches = false) and whose ranks may run out of data at
  /// different times. Loops that begin while the scope is open have the same number of batches on every rank: a rank
  /// that has run out of data gets filler batches of its first samples. accumulate() gives a filler batch weight 0 and
  /// backward() multiplies its loss by 0, so a step uses the actual data only. `even_batches` overrides the option of
  /// the loaders. Every rank must call it. Throws UsageError before the end of LocalSGD, also in its warm-up.
  JoinScope join_uneven_inputs(std::optional<bool> even_batches = std::nullopt);
  /// True if the current batch is filler: this rank has run out of data.
  bool on_filler_batch() const;

  /// Opens a scope for one micro-batch of a window: `auto window = accelerator.accumulate(model);`. Takes one or more
  /// prepared models. step(), clipping and schedules act in the window's last scope only. A window ends after
  /// gradient_accumulation_steps() scopes, or with the data. The gradient is the sum over the window's micro-batches of
  /// all ranks, divided by the sum of their weights: a mean, as each weight is 1 by default. Every rank must call it.
  /// Throws UsageError for a model that is not prepared, for a weight that is negative or not finite, and in a loop
  /// over a loader for evaluation.
  AccumulateScope accumulate(detail::ModelRef model, const std::convertible_to<detail::ModelRef> auto&... more) {
    return begin_accumulate({model, more...}, {});
  }
  /// Opens the same scope with options: `accelerator.accumulate({.weight = tokens}, generator, critic)`.
  AccumulateScope accumulate(const AccumulateOptions& options, detail::ModelRef model,
                             const std::convertible_to<detail::ModelRef> auto&... more) {
    return begin_accumulate({model, more...}, options);
  }
  /// Opens the same scope with options, for one model: `accelerator.accumulate(model, {.weight = tokens})`.
  AccumulateScope accumulate(detail::ModelRef model, const AccumulateOptions& options) {
    return begin_accumulate({model}, options);
  }

  /// Opens a scope in which backward passes do not synchronize the model's gradients. Has no effect if `when` is false.
  /// Throws UsageError for a model that is not prepared.
  NoSyncScope no_sync(detail::ModelRef model, bool when = true);
  /// Makes the next backward pass synchronize the model's gradients, in any scope. Every rank must call it. Throws
  /// UsageError for a model that is not prepared.
  void trigger_sync_in_backward(detail::ModelRef model);
  /// Synchronizes the model's gradients now. Every rank must call it. Throws UsageError for a model that is not
  /// prepared.
  void synchronize(detail::ModelRef model, const CallSite& where = CallSite::here());
  /// Discards the gradients of the model's open window and their weights, as if the window had not begun. Call it if a
  /// loop ends within a window, or skips a batch that all ranks agreed to skip. Every rank must call it. Throws
  /// UsageError for a model that is not prepared.
  void discard_accumulation(detail::ModelRef model);

  /// Opens a scope in which forward passes and losses run in the precision AcceleratorOptions::mixed_precision, on the
  /// accelerator if a prepared model has parameters on one. Without mixed precision the scope has no effect.
  AutocastScope autocast();
  /// Calls `forward` in a scope of autocast() and returns the result of `forward`:
  /// `auto loss = accelerator.autocast([&] { return loss_of(model->forward(x), y); });`
  template <typename Forward>
  requires std::invocable<Forward&>
  auto autocast(Forward&& forward) -> std::invoke_result_t<Forward&> {
    const AutocastScope scope = autocast();
    return forward();
  }

  /// Runs loss.backward({}, retain_graph). Outside accumulate() the loss is first divided by
  /// gradient_accumulation_steps, as in Accelerate; inside, the window's mean replaces the division. With fp16 the loss
  /// is scaled, and the synchronization unscales the gradients. Every rank must call it if the pass synchronizes.
  /// Throws UsageError for a forward pass outside autocast() if mixed precision is set, and on several ranks if nothing
  /// is prepared.
  void backward(const at::Tensor& loss, bool retain_graph = false, const CallSite& where = CallSite::here());

  /// Synchronizes gradients that are not synchronized yet, clips their total norm to `max_norm`, and returns the norm
  /// before clipping, which works as a double. Under fp16 the norm is that of the unscaled gradients. Every rank must
  /// call it. Before the last micro-batch of a window it has no effect and returns nullopt. Throws UsageError for a
  /// parameter that no prepared model has, and for a norm that is not finite if `error_if_nonfinite` is set. The host
  /// waits for gradients on an accelerator when the norm is read; see clip_grad.h.
  std::optional<LateValue> clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                                           double norm_type = 2.0, bool error_if_nonfinite = false,
                                           const CallSite& where = CallSite::here());
  /// Does the same for all parameters of the model. Every rank must call it.
  std::optional<LateValue> clip_grad_norm_(detail::ModelRef model, double max_norm, double norm_type = 2.0,
                                           bool error_if_nonfinite = false, const CallSite& where = CallSite::here());
  /// Clamps every element of the gradients to [-clip_value, clip_value], under the conditions of clip_grad_norm_().
  /// Every rank must call it. Returns false before the last micro-batch of a window.
  bool clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value,
                        const CallSite& where = CallSite::here());
  /// Does the same for all parameters of the model. Every rank must call it.
  bool clip_grad_value_(detail::ModelRef model, double clip_value, const CallSite& where = CallSite::here());

  /// The current loss scale; 1 without fp16.
  double loss_scale() const;
  /// True if a prepared optimizer skipped its last step because gradients had overflowed.
  bool optimizer_step_was_skipped() const;

  /// Adds `object` to checkpoints under `name` until the object is destroyed. Every rank must call it. Throws
  /// UsageError if `name` is taken, or has other characters than letters, digits, '_' and '-'. If states differ between
  /// ranks, a checkpoint has that of each rank. On another number of ranks, all load rank 0's state.
  void register_for_checkpointing(const std::string& name, Stateful& object);
  /// Does the same for a shared object. The Accelerator keeps a reference to it.
  void register_for_checkpointing(const std::string& name, std::shared_ptr<Stateful> object);

  /// Writes a checkpoint: prepared models, optimizers and schedules, the loss scaler, positions of loaders, the
  /// gradients of open windows, each rank's random state, and registered objects. Returns the folder of the checkpoint.
  /// Every rank must call it. Must be called between backward passes. First waits for the previous asynchronous save.
  /// If wait_for_checkpoint() has not thrown the error of that save on every rank, all ranks throw it. Throws as
  /// write_checkpoint() does, and UsageError if nothing is prepared or registered.
  std::filesystem::path save_state(const SaveStateOptions& options = {}, const CallSite& where = CallSite::here());
  /// Blocks until an asynchronous save is on disk. Ranks need not call it together. Rethrows the exception of the save,
  /// once.
  void wait_for_checkpoint();
  /// Restores the state that save_state() wrote. On the same number of ranks, training continues to the same bits. On
  /// another number, every sample of the epoch is still read once, and the gradients of open windows are distributed
  /// over the new ranks. The program must have prepared the objects that were saved, in any order: models are matched
  /// by their classes, and optimizers, schedules and windows by the names of their parameters. Those with equal classes
  /// or names, such as a model and its average, must be prepared in the order of the saved program. A saved loader that
  /// the program does not have is left out, with a warning if it was within an epoch. Every rank must call it. If a
  /// part does not match, all ranks throw CheckpointError with the part's name, and no state is changed on any rank.
  CheckpointInfo load_state(const std::filesystem::path& folder, const CallSite& where = CallSite::here());
  /// Loads the newest complete checkpoint with an automatic name. All ranks skip a checkpoint that has a missing or
  /// damaged file on any of them, with a warning that names the file. Returns nullopt and changes nothing if there is
  /// no checkpoint. Every rank must call it. Throws CheckpointError if there are checkpoints and none is complete, as
  /// load_state() does, and UsageError without a project folder.
  std::optional<CheckpointInfo> load_latest_state(const CallSite& where = CallSite::here());

  // Tracking, on the main process. The calls have no effect on the other ranks. They throw UsageError for a step that
  // is not 0 to 2^53.
  /// Adds a tracker for log(). Throws UsageError for a null pointer.
  void add_tracker(std::unique_ptr<Tracker> tracker);
  /// Begins a run of the trackers. With a project folder DIR they include a JsonlTracker on DIR/metrics.jsonl. `step`:
  /// 0, or the step at which a resumed run continues; values of later steps that an earlier process has logged are
  /// void. If it is unset, the trackers start with Trainer::fit(), at its step, or with the first value: at the step
  /// before the value if the program has loaded a state, otherwise at 0.
  void init_trackers(const std::string& run, const Hyperparameters& hyperparameters = {},
                     std::optional<std::int64_t> step = std::nullopt);
  /// Writes `scalars` as values of optimizer step `step`. Steps may come in any order, for example epochs for some
  /// names. Values are not averaged over ranks: call reduce() first. Throws UsageError before init_trackers() if there
  /// is a tracker or a project folder.
  void log(const Scalars& scalars, std::int64_t step);
  /// Writes a text under `name`, such as a sample of the model.
  void log_text(const std::string& name, const std::string& text, std::int64_t step);

  /// True on a window's last micro-batch, whose backward pass synchronizes gradients. Outside of accumulate(): that of
  /// the previous scope.
  bool sync_gradients() const;
  /// Micro-batches of one rank in a window, from AcceleratorOptions or GradientAccumulationPlugin. With `reproducible`,
  /// the number depends on the number of ranks.
  int gradient_accumulation_steps() const;

  /// This rank, 0 .. num_processes() - 1.
  int rank() const;
  /// Accelerate's name of rank().
  int process_index() const { return rank(); }
  /// The local rank: the number of this rank among those of the Accelerator's group on its node.
  int local_process_index() const;
  /// The world size.
  int num_processes() const;
  /// AcceleratorOptions::device with its index; the CPU if the option is unset.
  at::Device device() const;
  /// True on rank 0.
  bool is_main_process() const { return rank() == 0; }
  /// True on the node leader.
  bool is_local_main_process() const { return local_process_index() == 0; }
  /// True on the highest rank.
  bool is_last_process() const { return rank() + 1 == num_processes(); }
  /// A barrier: blocks until every rank has called it. Every rank must call it.
  void wait_for_everyone(const CallSite& where = CallSite::here()) const;
  /// Releases the prepared models and optimizers: gradients are no longer synchronized, and step() of the optimizers
  /// that prepare() has returned throws UsageError. Model and LibTorch optimizer may be prepared again. Loaders, the
  /// loss scaler, registered objects and trackers stay. Memory is freed once the program has released its models
  /// and optimizers too. Every rank must call it. A rank that still waits for this rank's gradients, buffers or batches
  /// throws PeerError.
  void free_memory();
  /// Writes a line to standard output, on the main process only.
  void print(const std::string& line) const;

  /// AcceleratorOptions::project: the run's folder and the retention of checkpoints.
  const ProjectConfiguration& project() const;
  /// The communicator for the program's own collectives.
  const Communicator& communicator() const;
  /// Writes lines with a prefix to standard error. TUTTI_LOG_LEVEL sets the level.
  const Logger& logger() const;
  /// Counts and times of synchronizations on this rank, over all prepared models.
  SyncStats stats() const;

 private:
  friend class LocalSGD;
  friend class TrainerContext;
  friend class AcceleratorHelpers<Accelerator>;
  struct State;

  // For the templates of detail/train/prepare.h.
  template <typename T>
  auto prepare_one(T&& object, std::optional<Optimizer>& previous);
  void prepare_model(std::shared_ptr<torch::nn::Module> module);
  Optimizer prepare_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer);
  Scheduler prepare_schedule(const std::optional<Optimizer>& optimizer, LrSchedule schedule);
  ReduceLROnPlateau prepare_plateau(const std::optional<Optimizer>& optimizer, const PlateauOptions& options);
  void complete_models();

  // For the templates of detail/train/make_loader.h.
  template <typename Loader, typename Dataset, typename Options>
  Loader make_loader(Dataset&& dataset, const Options& options, const CallSite& where);
  LoaderGroup loader_group();
  DataLoaderOptions loader_options(DataLoaderOptions options) const;
  StreamLoaderOptions loader_options(StreamLoaderOptions options) const;
  void check_whole_steps(const ShardOptions& options, bool evaluation) const;
  void check_same_loader(const std::function<std::string()>& make);
  void register_loader(const std::shared_ptr<Stateful>& cursor, std::string description, bool evaluation);

  // For AcceleratorHelpers.
  const Communicator& internal_communicator() const;
  std::optional<LoaderPosition> loop_position() const;
  void set_loader_seed(std::uint64_t seed);

  AccumulateScope begin_accumulate(const std::vector<detail::ModelRef>& models, const AccumulateOptions& options);

  std::unique_ptr<State> state_;
};

}  // namespace tutti

#include "tutti/detail/train/make_loader.h"
#include "tutti/detail/train/prepare.h"
