#pragma once
// The part of a Trainer that does not depend on the types of model and data, for callbacks.
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/detail/train/stage_clock.h"
#include "tutti/detail/train/trainer_schedule.h"
#include "tutti/device/late_value.h"
#include "tutti/state/stateful.h"
#include "tutti/tracking/progress_bar.h"
#include "tutti/train/accelerator.h"
#include "tutti/train/callback.h"
#include "tutti/train/trainer_options.h"

namespace tutti {

class ProjectLock;
class StopSignal;

/// The metrics of one optimizer step, updated by the Trainer at every optimizer step: see TrainerContext::metrics().
/// Values are equal on all ranks, except `seconds_waiting`, the two rates, which this rank's clock measures, and norms
/// of gradients and weights that differ between ranks. Loss and norms on an accelerator are late: the first read of
/// each waits for the accelerator, so a callback that reads them in every step slows the run down.
struct StepMetrics {
  std::int64_t global_step = 0;  ///< optimizer steps so far, this one included
  double epoch = 0;              ///< the epoch plus the fraction of it that has been read
  /// Sum of the window's losses over all ranks, divided by their weights. In the first step after a resume within a
  /// window: of the micro-batches since.
  LateValue loss{};
  /// Norm of the synchronized, unscaled gradients.
  LateValue grad_norm_pre_clip{};
  /// Norm of the gradients after clipping: at most TrainerOptions::max_grad_norm.
  LateValue grad_norm_post_clip{};
  /// Norm of all trained parameters; set only in steps that are logged.
  std::optional<double> weight_norm{};
  double learning_rate = 0;       ///< of the step just taken, first parameter group
  bool step_was_skipped = false;  ///< gradients overflowed under fp16, so parameters are unchanged
  /// Of all ranks together, since the previous step, without the time of evaluations and checkpoints.
  double samples_per_second = 0;
  double tokens_per_second = 0;  ///< of all ranks together; 0 unless TrainerFunctions::tokens is set
  double seconds_waiting = 0;    ///< time that this rank waited for other ranks' gradients
};

/// The base of Trainer, passed to callbacks. Not thread safe. The compiler fills in `where`.
class TrainerContext {
 public:
  virtual ~TrainerContext();
  TrainerContext(const TrainerContext&) = delete;
  TrainerContext& operator=(const TrainerContext&) = delete;

  /// Adds a callback. Callbacks are called in the order in which they were added. Every rank must add the same
  /// callbacks, before fit(), which throws MismatchError on all ranks if their classes differ. Throws UsageError for a
  /// null pointer and for a name that another callback has.
  void add_callback(std::shared_ptr<Callback> callback);
  /// Sets the function that evaluate() calls, and replaces an earlier one. It runs in evaluation mode without
  /// gradients, and returns results by name, equal on all ranks: reduce them over the ranks. The Trainer prepends
  /// "eval/" to the names.
  void set_evaluation(std::function<Scalars()> evaluation) { evaluation_ = std::move(evaluation); }

  /// Evaluates, and logs the results once fit() has begun. Every rank must call it. Throws MismatchError, on all ranks,
  /// if a result differs between ranks, and UsageError during another evaluation.
  Scalars evaluate(const CallSite& where = CallSite::here());
  /// Saves a checkpoint and returns its folder. Every rank must call it, between steps. Throws UsageError during an
  /// evaluation, because callbacks may have replaced the parameters, and from on_step_start() to the end of the
  /// optimizer step, because the checkpoint would leave out the batch: a callback saves in on_step_end(), which follows
  /// both. So does Accelerator::save_state().
  std::filesystem::path save_checkpoint(const CallSite& where = CallSite::here());
  /// Ends the run after the current optimizer step. Every rank must call it in the same event. `reason`: shown when
  /// fit() ends, for example "EarlyStopping: eval/loss has not improved".
  void stop(std::string reason = {}) {
    stop_requested_ = true;
    if (stop_reason_.empty()) stop_reason_ = std::move(reason);
  }

  /// The Accelerator that prepared the model.
  Accelerator& accelerator() { return accelerator_; }
  /// The model that is trained.
  torch::nn::Module& model() { return *module_; }
  /// The prepared optimizer.
  Optimizer& optimizer() { return optimizer_; }
  /// The options of the trainer.
  const TrainerOptions& options() const { return options_; }
  /// True if each rank has its own gradient norm: while LocalSGD takes local steps, and if all parameters of the model
  /// are ignored_parameters. Equal on all ranks.
  bool has_norm_by_rank() const;
  /// True if a loss scaler skips steps whose gradients overflow (fp16), also where its scale is 1.
  bool has_loss_scaler() const;
  /// Loss, norms and rates of the last optimizer step; in on_optimizer_step_start, of the current one.
  const StepMetrics& metrics() const { return metrics_; }
  /// Sum of this rank's losses in the window.
  LateValue local_loss() const;
  /// Sum of this rank's weights in the window: its number of micro-batches, unless TrainerFunctions::weight is set.
  double local_weight() const { return sums_.weight; }
  /// Results of the last evaluation, as "eval/..."; empty before the first one.
  const Scalars& last_evaluation() const { return last_evaluation_; }
  /// Number of optimizer steps so far, including steps before a resume and skipped steps.
  std::int64_t global_step() const { return progress_->global_step; }
  /// The current epoch, from 0.
  std::int64_t epoch() const { return progress_->epoch; }

 protected:
  TrainerContext(Accelerator& accelerator, std::shared_ptr<torch::nn::Module> module, Optimizer optimizer,
                 TrainerSchedule schedule, TrainerOptions options);

  /// The state of the loop in checkpoints.
  struct Progress final : Stateful {
    std::int64_t global_step = 0;
    std::int64_t epoch = 0;
    std::int64_t evaluated_step = 0;  // of the last evaluation
    bool evaluation_is_due = false;   // of evaluate_every, which a signal has left to the resumed run
    bool epoch_has_ended = false;     // in on_epoch_end: the loader is in the next epoch, and so is a checkpoint
    StateDict state_dict() const override;
    void load_state_dict(const StateDict& state) override;
  };

  template <typename... Parameters, typename... Arguments>
  void trigger(void (Callback::*event)(TrainerContext&, Parameters...), Arguments&&... arguments) {
    for (const auto& callback : callbacks_) ((*callback).*event)(*this, arguments...);
  }

  /// Ends the signal handling, the progress bar and the lock of a run, also after an exception.
  class FitScope {
   public:
    explicit FitScope(TrainerContext& trainer) : trainer_(trainer) {}
    ~FitScope();
    FitScope(const FitScope&) = delete;
    FitScope& operator=(const FitScope&) = delete;

   private:
    TrainerContext& trainer_;
  };

  enum class Phase {
    between_steps,
    step,        ///< a batch has been read, and its micro-batch or optimizer step has not ended
    evaluation,  ///< callbacks may have replaced the parameters
  };
  void set_phase(Phase phase);

  /// Phase::step until destruction, or until the optimizer has stepped.
  class StepScope {
   public:
    explicit StepScope(TrainerContext& trainer) : trainer_(trainer) { trainer_.set_phase(Phase::step); }
    ~StepScope() { trainer_.set_phase(Phase::between_steps); }
    StepScope(const StepScope&) = delete;
    StepScope& operator=(const StepScope&) = delete;

   private:
    TrainerContext& trainer_;
  };

  /// nullopt: the number is unknown, and the logged epoch has no fraction.
  void begin_fit(std::optional<std::int64_t> batches_per_epoch);
  StopReason end_fit();
  /// Adds a micro-batch to the window's sums.
  void count(const at::Tensor& loss, double weight, std::int64_t samples, std::int64_t tokens);
  /// Clips, steps, advances the schedule, clears gradients, and reduces metrics over all ranks.
  void optimizer_step(double batches_read);
  /// Logs, evaluates and saves in the steps that the options select.
  void after_optimizer_step();
  /// Evaluates and saves in the epochs that the options select, and calls on_epoch_end.
  void end_epoch();
  /// Runs the evaluation that a signal has left to this run. keep_best needs its result in a checkpoint.
  void make_up_for_evaluation();
  /// Logs, evaluates and saves at the end of the run, if the last step has not.
  void finish();
  [[noreturn]] void fail_without_data();
  bool done() const;

  Accelerator& accelerator_;
  Optimizer optimizer_;
  TrainerSchedule schedule_;
  std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
  StageClock clock_;

 private:
  /// Sums of this rank since the last optimizer step.
  struct Sums {
    double loss = 0;
    bool has_host_loss = false;
    at::Tensor device_loss{};  ///< of the losses on an accelerator; undefined without one
    double weight = 0;
    std::int64_t samples = 0;
    std::int64_t tokens = 0;
  };

  /// The sum of the losses of all ranks, on this rank's accelerator. Its all-reduce may be in flight.
  struct DeviceLoss {
    Work all_reduce;
    at::Tensor sum;
    double weight = 0;
    /// The mean. The copy to the host is queued on the calling thread's current stream.
    LateValue mean() const;
  };

  /// Throws UsageError for options that are out of range or contradict one another.
  void require_valid_options() const;
  /// Throws MismatchError on all ranks if the options or callbacks differ that decide which calls ranks make.
  void require_same_options() const;
  void require_same_callbacks() const;
  /// Runs the evaluation of evaluate_every, if it has not run after the last step. Returns whether it has run now.
  bool evaluate_if_due();
  /// Throws UsageError, on all ranks, if another run trains in the project's folder or another Trainer has.
  void take_project();
  /// Starts the trackers at the present step, unless the program has.
  void begin_tracking();
  void reduce_metrics(double batches_read);
  LateValue reduce_loss(double host_loss, double weight, double where_losses_are);
  /// Writes the reason why the run ended, on rank 0.
  void report_end(StopReason reason);
  void log_metrics();
  void log(Scalars scalars);
  LateValue weight_norm() const;

  std::shared_ptr<torch::nn::Module> module_;
  TrainerOptions options_;
  std::vector<std::shared_ptr<Callback>> callbacks_;
  std::function<Scalars()> evaluation_;
  Scalars last_evaluation_;
  StepMetrics metrics_;
  Sums sums_;
  std::optional<DeviceLoss> device_loss_;  // of the last step, if all ranks have losses on accelerators
  std::optional<double> shown_loss_;       // of the progress bar: the last loss that was read
  std::optional<std::int64_t> batches_per_epoch_;
  bool stop_requested_ = false;
  std::string stop_reason_;
  bool signal_received_ = false;
  Phase phase_ = Phase::between_steps;
  bool last_step_ = false;  // the last optimizer step has read the last batch of max_epochs, on all ranks
  std::int64_t logged_step_ = 0;
  std::int64_t saved_step_ = -1;
  double waited_before_ = 0;
  std::chrono::steady_clock::time_point step_began_{};
  std::unique_ptr<ProjectLock> project_lock_;  // on rank 0 during fit()
  std::unique_ptr<StopSignal> signal_;
  std::unique_ptr<ProgressBar> bar_;
};

}  // namespace tutti
