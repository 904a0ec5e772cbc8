#pragma once
// The part of a Trainer that does not depend on the model's and the data's types: what callbacks see.
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/detail/train/stage_clock.h"
#include "tutti/state/stateful.h"
#include "tutti/tracking/progress_bar.h"
#include "tutti/train/accelerator.h"
#include "tutti/train/callback.h"
#include "tutti/train/step_metrics.h"
#include "tutti/train/trainer_options.h"
#include "tutti/train/trainer_schedule.h"

namespace tutti {

class StopSignal;

/// What callbacks get, and what a Trainer offers besides fit(). One thread. `where` is filled in by the compiler.
class TrainerContext {
 public:
  virtual ~TrainerContext();
  TrainerContext(const TrainerContext&) = delete;
  TrainerContext& operator=(const TrainerContext&) = delete;

  /// Callbacks are called in the order in which they were added; all ranks add the same. Before fit().
  void add_callback(std::shared_ptr<Callback> callback);
  /// What evaluate() calls: it gives results by name, equal on all ranks; "eval/" is put before the names. It runs in
  /// evaluation mode without gradients. Replaces what was set before.
  void set_evaluation(std::function<Scalars()> evaluation) { evaluation_ = std::move(evaluation); }

  /// Evaluates now, and logs the results. Every rank must call it.
  Scalars evaluate(const CallSite& where = CallSite::here());
  /// Saves now. Every rank must call it, between steps.
  std::filesystem::path save_checkpoint(const CallSite& where = CallSite::here());
  /// Ends the run after this step. Every rank must call it at the same point.
  void stop() { stop_requested_ = true; }

  /// The Accelerator that prepared the model.
  Accelerator& accelerator() { return accelerator_; }
  /// The model that is trained.
  torch::nn::Module& model() { return *module_; }
  /// The prepared optimizer.
  Optimizer& optimizer() { return optimizer_; }
  /// What the trainer was told.
  const TrainerOptions& options() const { return options_; }
  /// Loss, norms and rates of the last optimizer step; inside on_optimizer_step_start those of the present one.
  const StepMetrics& metrics() const { return metrics_; }
  /// Sum of this rank's losses in the window.
  double local_loss() const { return sums_.loss; }
  /// Sum of this rank's weights in the window: its number of micro-batches, unless TrainerFunctions::weight counts
  /// other things.
  double local_weight() const { return sums_.weight; }
  /// Results of the newest evaluation, as "eval/..."; empty before the first.
  const Scalars& last_evaluation() const { return last_evaluation_; }
  /// Optimizer steps so far, those before a resume included; skipped ones count.
  std::int64_t global_step() const { return progress_->global_step; }
  /// The present epoch; the first is 0.
  std::int64_t epoch() const { return progress_->epoch; }

 protected:
  TrainerContext(Accelerator& accelerator, std::shared_ptr<torch::nn::Module> module, Optimizer optimizer,
                 TrainerSchedule schedule, TrainerOptions options);

  /// What a checkpoint keeps of the loop.
  struct Progress final : Stateful {
    std::int64_t global_step = 0;
    std::int64_t epoch = 0;
    StateDict state_dict() const override;
    void load_state_dict(const StateDict& state) override;
  };

  template <typename... Parameters, typename... Arguments>
  void trigger(void (Callback::*event)(TrainerContext&, Parameters...), Arguments&&... arguments) {
    for (const auto& callback : callbacks_) ((*callback).*event)(*this, arguments...);
  }

  /// nullopt: nobody knows, and the epoch that is logged grows in whole steps.
  void begin_fit(std::optional<std::int64_t> batches_per_epoch);
  StopReason end_fit();
  /// Adds a micro-batch to the window's sums.
  void count(const at::Tensor& loss, double weight, std::int64_t samples, std::int64_t tokens);
  /// Clips, steps, moves the schedule, clears gradients, and takes stock over all ranks.
  void optimizer_step(std::int64_t batches_read);
  /// Logs, evaluates and saves where the options say so.
  void after_optimizer_step();
  /// Logs, evaluates and saves what the last steps have not.
  void finish();
  bool done() const;

  Accelerator& accelerator_;
  Optimizer optimizer_;
  TrainerSchedule schedule_;
  std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
  StageClock clock_;

 private:
  /// Of this rank, since the last optimizer step.
  struct Sums {
    double loss = 0;
    double weight = 0;
    std::int64_t samples = 0;
    std::int64_t tokens = 0;
  };

  void reduce_metrics(std::int64_t batches_read);
  void step_plateau_schedule();
  void log_metrics();
  void log(Scalars scalars);
  double weight_norm() const;

  std::shared_ptr<torch::nn::Module> module_;
  TrainerOptions options_;
  std::vector<std::shared_ptr<Callback>> callbacks_;
  std::function<Scalars()> evaluation_;
  Scalars last_evaluation_;
  StepMetrics metrics_;
  Sums sums_;
  std::optional<std::int64_t> batches_per_epoch_;
  bool stop_requested_ = false;
  bool signal_received_ = false;
  std::int64_t logged_step_ = 0;
  std::int64_t evaluated_step_ = -1;
  std::int64_t saved_step_ = -1;
  double waited_before_ = 0;
  std::chrono::steady_clock::time_point step_began_{};
  std::unique_ptr<StopSignal> signal_;
  std::unique_ptr<ProgressBar> bar_;
};

}  // namespace tutti
