#pragma once
// The Accelerator: the loop is written for one process and runs on any number of ranks. Names are Hugging Face
// Accelerate's. Every rank runs the same program: prepare(), accumulate(), synchronize(), clip_grad_norm_() and
// wait_for_everyone() are called by every rank, in the same order. One thread.
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/core/logging.h"
#include "tutti/data/data_loader.h"
#include "tutti/optim/lr_schedule.h"
#include "tutti/optim/optimizer.h"
#include "tutti/sync/reducer.h"
#include "tutti/sync/sync_scopes.h"
#include "tutti/train/gradient_accumulation_plugin.h"
#include "tutti/train/prepare_traits.h"

namespace tutti {

struct AcceleratorOptions {
  /// Micro-batches of one rank in an optimizer step. Excludes `gradient_accumulation_plugin`.
  int gradient_accumulation_steps = 1;
  std::optional<GradientAccumulationPlugin> gradient_accumulation_plugin{};
  /// How backward passes outside accumulate() decide whether they synchronize.
  SyncPolicy sync_policy = SyncPolicy::automatic;
  BucketOptions buckets{};
  /// See ReducerOptions.
  bool check_replicas = true;
  CommunicatorOptions communication{};
  /// A group that exists already, instead of one made from the launcher's variables.
  std::optional<Communicator> communicator{};
};

struct AccumulateOptions {
  /// What this micro-batch weighs in the step's mean, for example its number of tokens where the loss is their sum.
  double weight = 1.0;
};

class Accelerator {
 public:
  /// Reads the launcher's variables and joins the job (see Communicator::connect). Throws UsageError for options that
  /// contradict.
  explicit Accelerator(const AcceleratorOptions& options = {});
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  /// Prepares models (module holders or shared_ptrs to modules), optimizers and learning rate schedules, in any number
  /// and order; a schedule belongs to the optimizer before it. Returns a tuple with, for each argument: the same model
  /// (by reference for an lvalue: nothing wraps it), a tutti::Optimizer, a tutti::Scheduler. Rvalue optimizers are
  /// owned, lvalues referenced and must outlive this. Models, and the state of optimizers, become those of rank 0.
  /// Throws Divergence when ranks prepare different models, UsageError for an optimizer with parameters outside the
  /// prepared models.
  template <typename... Ts>
  auto prepare(Ts&&... objects);

  /// A loader over this rank's shard of `dataset` (torch::data::datasets, or what has get_batch() and size()). A ready
  /// LibTorch loader cannot be taken over: its sampler is private.
  template <typename Dataset>
  DataLoader<Dataset> data_loader(Dataset dataset, const DataLoaderOptions& options = {});

  /// One micro-batch of a window: `auto window = accelerator.accumulate(model);`. Inside, step(), clipping and
  /// schedules act at the window's end, which is each num_steps scopes and at the end of the data; the gradient is the
  /// mean over the window's micro-batches of all ranks, by weight. Takes one model or several.
  template <typename... Models>
  requires(sizeof...(Models) > 0 && (detail::model_argument<Models> && ...)) AccumulateScope
      accumulate(const Models&... models) {
    return accumulate({}, models...);
  }
  template <typename... Models>
  requires(sizeof...(Models) > 0 && (detail::model_argument<Models> && ...)) AccumulateScope
      accumulate(const AccumulateOptions& options, const Models&... models) {
    return begin_accumulate({&detail::module_of(models)...}, options);
  }
  AccumulateScope accumulate(const detail::model_argument auto& model, const AccumulateOptions& options) {
    return accumulate(options, model);
  }

  /// Under the returned scope backward passes keep the model's gradients to their own rank.
  NoSyncScope no_sync(const detail::model_argument auto& model, bool when = true) {
    return begin_no_sync(detail::module_of(model), when);
  }
  /// The next backward pass synchronizes the model's gradients, whatever scope it is in.
  void trigger_sync_in_backward(const detail::model_argument auto& model) {
    for (const auto& reducer : reducers_of({&detail::module_of(model)})) reducer->trigger_sync_in_backward();
  }
  /// Synchronizes the model's gradients now.
  void synchronize(const detail::model_argument auto& model) {
    for (const auto& reducer : reducers_of({&detail::module_of(model)})) reducer->synchronize();
  }

  /// loss.backward(). Outside accumulate() the loss is divided by gradient_accumulation_steps first (as Accelerate
  /// does, seed of the annotated train step); inside, the scope's weight does it.
  void backward(const at::Tensor& loss);

  /// Clips the model's gradients together, after synchronizing what is missing; returns their norm before. Inside
  /// accumulate() it acts at the window's end and returns nullopt before that.
  std::optional<double> clip_grad_norm_(const detail::model_argument auto& model, double max_norm,
                                        double norm_type = 2.0) {
    return clip(detail::module_of(model), max_norm, norm_type);
  }

  /// Whether gradients are synchronized in the present accumulate() scope (the last one, outside): true on its window's
  /// last micro-batch.
  bool sync_gradients() const { return sync_gradients_; }
  int gradient_accumulation_steps() const { return plugin_.num_steps; }

  int rank() const { return communicator_.rank(); }
  int process_index() const { return rank(); }
  int local_process_index() const { return communicator_.layout().local_rank; }
  int num_processes() const { return communicator_.size(); }
  bool is_main_process() const { return rank() == 0; }
  bool is_local_main_process() const { return local_process_index() == 0; }
  bool is_last_process() const { return rank() + 1 == num_processes(); }
  /// Blocks until every rank has called it.
  void wait_for_everyone() const;
  /// Writes a line to standard output, on the main process only.
  void print(const std::string& line) const;

  /// The user's own channel.
  const Communicator& communicator() const { return communicator_; }
  const Logger& logger() const { return logger_; }
  /// What synchronization did and cost on this rank, over all prepared models.
  SyncStats stats() const;

 private:
  struct Registry;

  void prepare_model(std::shared_ptr<torch::nn::Module> module);
  std::shared_ptr<Reducer> prepare_optimizer(torch::optim::Optimizer& optimizer);
  void complete_models();

  template <typename T>
  auto prepare_one(T&& object, std::optional<Optimizer>& previous);

  AccumulateScope begin_accumulate(const std::vector<const torch::nn::Module*>& modules,
                                   const AccumulateOptions& options);
  NoSyncScope begin_no_sync(const torch::nn::Module& module, bool when);
  std::optional<double> clip(const torch::nn::Module& module, double max_norm, double norm_type);
  std::vector<std::shared_ptr<Reducer>> reducers_of(const std::vector<const torch::nn::Module*>& modules) const;

  GradientAccumulationPlugin plugin_;
  ReducerOptions reducer_options_;
  Communicator communicator_;
  Communicator prepare_channel_;
  Logger logger_;
  std::shared_ptr<LoaderStack> loaders_ = std::make_shared<LoaderStack>();
  std::unique_ptr<Registry> registry_;
  bool sync_gradients_ = true;
};

template <typename T>
auto Accelerator::prepare_one(T&& object, std::optional<Optimizer>& previous) {
  using Object = std::remove_cvref_t<T>;
  if constexpr (detail::model_argument<Object>) {
    // An lvalue stays the caller's, an rvalue moves into the tuple.
    if constexpr (std::is_lvalue_reference_v<T>) {
      return std::tuple<Object&>(object);
    } else {
      return std::tuple<Object>(std::forward<T>(object));
    }
  } else if constexpr (detail::optimizer_argument<Object>) {
    auto optimizer = detail::share_optimizer(std::forward<T>(object));
    previous.emplace(optimizer, prepare_optimizer(*optimizer));
    return std::tuple<Optimizer>(*previous);
  } else {
    static_assert(std::convertible_to<Object, LrSchedule>,
                  "prepare() takes models (module holders or shared_ptr to a module), optimizers and schedules; a "
                  "LibTorch data loader cannot be re-sharded: use data_loader(dataset)");
    if (!previous) throw UsageError("prepare(): a schedule belongs to the optimizer before it, and there is none");
    return std::tuple<Scheduler>(
        Scheduler(*previous, std::forward<T>(object),
                  plugin_.adjust_scheduler ? ScheduleUnit::micro_batch : ScheduleUnit::optimizer_step));
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

template <typename Dataset>
DataLoader<Dataset> Accelerator::data_loader(Dataset dataset, const DataLoaderOptions& options) {
  return DataLoader<Dataset>(std::move(dataset), options, rank(), num_processes(), plugin_.num_steps, loaders_);
}

}  // namespace tutti
