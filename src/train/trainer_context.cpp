#include "tutti/train/trainer_context.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <limits>
#include <utility>

#include "tracking/printed.h"
#include "train/accelerator_state.h"
#include "train/callbacks/metric.h"
#include "train/project_lock.h"
#include "train/same_results.h"
#include "train/stop_signal.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/internal_call.h"
#include "tutti/tracking/tensorboard_tracker.h"

namespace tutti {

namespace {

using Clock = std::chrono::steady_clock;

/// Leaves its lifetime out of the time since `began`. A clock within the lifetime of another one has no effect.
class PausedClock {
 public:
  explicit PausedClock(Clock::time_point& began) : began_(began) {}
  ~PausedClock() { began_ = before_ + (Clock::now() - paused_at_); }
  PausedClock(const PausedClock&) = delete;
  PausedClock& operator=(const PausedClock&) = delete;

 private:
  Clock::time_point& began_;
  const Clock::time_point before_ = began_;
  const Clock::time_point paused_at_ = Clock::now();
};

/// Sets a model to evaluation mode until destruction.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& model) {
    for (const auto& module : model.modules()) were_training_.emplace_back(module, module->is_training());
    model.eval();
  }
  ~EvaluationMode() {
    for (const auto& [module, was_training] : were_training_) module->train(was_training);  // parents first
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> were_training_;
};

}  // namespace

StateDict TrainerContext::Progress::state_dict() const {
  StateDict state;
  state.set("global_step", global_step);
  state.set("epoch", epoch + (epoch_has_ended ? 1 : 0));
  state.set("evaluated_step", evaluated_step);
  state.set("evaluation_is_due", evaluation_is_due);
  return state;
}

void TrainerContext::Progress::load_state_dict(const StateDict& state) {
  const auto step = state.get<std::int64_t>("global_step");
  epoch = state.get<std::int64_t>("epoch") - (epoch_has_ended ? 1 : 0);  // fit() adds 1 after on_epoch_end
  global_step = step;
  evaluated_step = state.contains("evaluated_step") ? state.get<std::int64_t>("evaluated_step") : step;
  evaluation_is_due =
      state.contains("evaluation_is_due") && state.get<bool>("evaluation_is_due");  // not in earlier versions
}

TrainerContext::TrainerContext(Accelerator& accelerator, std::shared_ptr<torch::nn::Module> module, Optimizer optimizer,
                               TrainerSchedule schedule, TrainerOptions options)
    : accelerator_(accelerator),
      optimizer_(std::move(optimizer)),
      schedule_(std::move(schedule)),
      clock_([&accelerator] { return accelerator.stats().seconds_waiting; }),
      module_(std::move(module)),
      options_(std::move(options)) {
  require_valid_options();
  const auto& registered = accelerator_.state_->registered;
  accelerator_.state_->end_registrations();
  if (std::ranges::find(registered, "trainer", &Accelerator::State::NamedObject::name) != registered.end()) {
    throw UsageError(
        "Trainer: the Accelerator has another Trainer: destroy that one first, or give each model an Accelerator");
  }
  accelerator_.register_for_checkpointing("trainer", *progress_);  // until the Trainer is destroyed
}

TrainerContext::~TrainerContext() = default;

void TrainerContext::add_callback(std::shared_ptr<Callback> callback) {
  if (!callback) throw UsageError("Trainer: add_callback() with a null pointer");
  if (const std::string name = callback->name(); !name.empty()) {
    if (std::ranges::any_of(callbacks_, [&name](const auto& other) { return other->name() == name; })) {
      throw UsageError(
          "Trainer: two callbacks have the name '" + name +
          "', by which checkpoints tell their states apart: give one of them another name, or add one only");
    }
    accelerator_.register_for_checkpointing("callback_" + name, *callback);
    accelerator_.state_->registered.back().lifetime = progress_->lifetime().watch();
  }
  callbacks_.push_back(std::move(callback));
}

void TrainerContext::set_phase(Phase phase) {
  phase_ = phase;
  std::string& refusal = accelerator_.state_->save_refusal;
  switch (phase) {
    case Phase::between_steps:
      refusal.clear();
      break;
    case Phase::step:
      refusal = "within a step of the Trainer: a resumed run would leave out the batch. Call it in on_step_end()";
      break;
    case Phase::evaluation:
      refusal =
          "during an evaluation: a callback such as Ema may have replaced the parameters. Call it in on_step_end(), "
          "which follows the evaluation";
      break;
  }
}

void TrainerContext::take_project() {
  const auto& folder = accelerator_.project().project_dir;
  if (folder.empty()) return;
  auto& state = *accelerator_.state_;
  if (state.has_trained && state.last_trainer.lock() != progress_) {
    throw UsageError(
        "Trainer: another Trainer has trained in " + folder.string() +
        ", and a resumed run could not tell their checkpoints and metrics apart: create an Accelerator with "
        "another project_dir for each Trainer");
  }
  project_lock_ = ProjectLock::of_job(folder, state.prepare_communicator);
}

bool TrainerContext::has_norm_by_rank() const {
  const auto& state = *accelerator_.state_;
  const auto is_ignored = [&state](const at::Tensor& parameter) { return state.is_ignored(parameter); };
  return state.takes_local_steps() || std::ranges::all_of(module_->parameters(), is_ignored);
}

bool TrainerContext::has_loss_scaler() const {
  return accelerator_.state_->scaler != nullptr;
}

bool TrainerContext::done() const {
  return stop_requested_ || signal_received_ || (options_.max_steps && global_step() >= *options_.max_steps) ||
         (options_.max_epochs && epoch() >= *options_.max_epochs);
}

void TrainerContext::begin_fit(std::optional<std::int64_t> batches_per_epoch) {
  if (!options_.evaluate_every.is_never() && !evaluation_) {
    throw UsageError("Trainer: evaluate_every without set_evaluation(): set the evaluation function before fit()");
  }
  batches_per_epoch_ = batches_per_epoch;
  stop_requested_ = signal_received_ = last_step_ = false;
  stop_reason_.clear();
  sums_ = {};  // an exception may have ended the last fit() within a window
  device_loss_.reset();
  progress_->epoch_has_ended = false;
  require_same_options();
  require_same_callbacks();
  take_project();
  if (options_.resume) {
    if (accelerator_.load_latest_state({})) last_evaluation_.clear();
  } else if (!accelerator_.project().project_dir.empty()) {
    accelerator_.state_->require_same_run("Trainer", "set TrainerOptions::resume to resume it");
  }
  if (progress_->evaluated_step != global_step()) last_evaluation_.clear();
  logged_step_ = saved_step_ = global_step();
  begin_tracking();
  Tracker*& tensorboard = accelerator_.state_->project_tensorboard;
  if (options_.tensorboard && accelerator_.is_main_process() && tensorboard == nullptr) {
    auto tracker = std::make_unique<TensorBoardTracker>(accelerator_.project().project_dir / "tensorboard");
    Tracker* const added = tracker.get();
    accelerator_.add_tracker(std::move(tracker));  // throws if the tracker cannot start
    tensorboard = added;
  }
  if (options_.progress_bar && accelerator_.is_main_process()) {
    bar_ = std::make_unique<ProgressBar>(
        ProgressBarOptions{.total = options_.max_steps.value_or(0), .start = global_step()});
  }
  if (options_.stop_on_signal) signal_ = std::make_unique<StopSignal>();
  step_began_ = std::chrono::steady_clock::now();
  waited_before_ = accelerator_.stats().seconds_waiting;
  clock_.take();
}

void TrainerContext::begin_tracking() {
  auto& tracked = accelerator_.state_->tracked_run;
  const bool by_the_program = tracked && !tracked->has_fit;
  const bool keeps_values = by_the_program && tracked->step == global_step();
  if (keeps_values && !options_.hyperparameters.empty() && accelerator_.is_main_process()) {
    accelerator_.state_->logger.warning(
        "TrainerOptions::hyperparameters are not written, because trackers have started before fit(): pass them to "
        "init_trackers()");
  }
  if (by_the_program) {  // also for a further fit()
    options_.run_name = tracked->name;
    options_.hyperparameters.insert(tracked->hyperparameters.begin(), tracked->hyperparameters.end());
  }
  // A further fit() voids what an earlier one has logged for later steps.
  if (!keeps_values) accelerator_.init_trackers(options_.run_name, options_.hyperparameters, global_step());
  tracked->has_fit = true;
}

TrainerContext::FitScope::~FitScope() {
  trainer_.bar_.reset();
  trainer_.signal_.reset();
  trainer_.project_lock_.reset();
}

StopReason TrainerContext::end_fit() {
  finish();
  accelerator_.wait_for_checkpoint();
  bar_.reset();
  accelerator_.state_->has_trained = true;
  accelerator_.state_->last_trainer = progress_;
  const StopReason reason = signal_received_  ? StopReason::signal
                            : stop_requested_ ? StopReason::callback
                                              : StopReason::finished;
  report_end(reason);
  if (!signal_) return reason;
  reason == StopReason::signal ? signal_->has_stopped_the_run() : signal_->leave_to_the_program();
  return reason;
}

void TrainerContext::report_end(StopReason reason) {
  if (!accelerator_.is_main_process()) return;
  std::string why;
  switch (reason) {
    case StopReason::finished:
      why = global_step() >= options_.max_steps.value_or(global_step() + 1) ? "max_steps is reached"
                                                                            : "max_epochs is reached";
      break;
    case StopReason::callback:
      why = stop_reason_.empty() ? "a callback called stop()" : stop_reason_;
      break;
    case StopReason::signal:
      why = "a signal (SIGINT or SIGTERM) stopped the run";
      if (saved_step_ == global_step() && !accelerator_.project().project_dir.empty())
        why += ", which TrainerOptions::resume continues";
      break;
  }
  accelerator_.log_text("end of training", why, global_step());  // `tutti report` shows it
  const std::string of = options_.max_steps ? " of " + std::to_string(*options_.max_steps) : "";
  std::cerr << "fit() ended at step " + std::to_string(global_step()) + of + ": " + why + '\n' << std::flush;
}

void TrainerContext::optimizer_step(double batches_read) {
  constexpr double no_limit = std::numeric_limits<double>::infinity();
  const double limit = options_.max_grad_norm.value_or(no_limit);
  clock_.measure(Stage::optimizer, [&] {
    const LateValue norm = *accelerator_.clip_grad_norm_(module_, limit, 2.0, false, {});
    const auto clipped = [limit](double value) { return value <= limit ? value : value * (limit / (value + 1e-6)); };
    metrics_ = {.global_step = global_step() + 1,
                .grad_norm_pre_clip = norm,
                .grad_norm_post_clip = norm.then(clipped),
                .learning_rate = optimizer_.learning_rate()};
  });
  reduce_metrics(batches_read);
  trigger(&Callback::on_optimizer_step_start);
  metrics_.learning_rate = optimizer_.learning_rate();  // which a callback may have set
  clock_.measure(Stage::optimizer, [&] {
    optimizer_.step(CallSite{});
    schedule_.step();
    optimizer_.zero_grad();
  });
  metrics_.step_was_skipped = optimizer_.step_was_skipped();
  sums_ = {};
  ++progress_->global_step;
  set_phase(Phase::between_steps);
  trigger(&Callback::on_optimizer_step_end);
}

void TrainerContext::after_optimizer_step() {
  if (bar_) {
    if (metrics_.loss.is_ready()) shown_loss_ = metrics_.loss;
    bar_->update(global_step(), shown_loss_ ? printed("loss %.4f", *shown_loss_) : "");
  }
  if (options_.log_every > 0 && global_step() % options_.log_every == 0) log_metrics();
  progress_->evaluation_is_due = options_.evaluate_every.ends_at_step(global_step());
  if (!signal_received_) evaluate_if_due();
  // The last checkpoint of a run is saved by finish(), after the evaluation at the end.
  if (done()) {
    finish();
  } else if (options_.save_every.ends_at_step(global_step()) && !last_step_) {
    save_checkpoint({});
  }
}

// After a signal the rest of the epoch is empty in the resumed run, which then calls this for the epoch.
void TrainerContext::end_epoch() {
  progress_->epoch_has_ended = true;
  progress_->evaluation_is_due = options_.evaluate_every.ends_with_epoch(epoch());
  evaluate_if_due();
  trigger(&Callback::on_epoch_end);
  progress_->epoch_has_ended = false;
  const bool save_is_due = options_.save_every.ends_with_epoch(progress_->epoch++);
  if (save_is_due && !done()) save_checkpoint({});
}

// The evaluation at the end of a run is not one of the schedule's.
bool TrainerContext::evaluate_if_due() {
  if (!std::exchange(progress_->evaluation_is_due, false) || options_.evaluate_every.is_never()) return false;
  evaluate({});
  if (schedule_.follows_a_metric()) schedule_.step(metric_in(last_evaluation_, options_.plateau_metric, "Trainer"));
  return true;
}

void TrainerContext::make_up_for_evaluation() {
  if (!evaluate_if_due()) return;
  if (accelerator_.project().retention.keep_best && options_.save_every.ends_at_step(global_step()))
    save_checkpoint({});
}

// After a signal there may be seconds left for the checkpoint, and the resumed run must count the evaluations of a run
// without an interruption, for example in EarlyStopping.
void TrainerContext::finish() {
  if (stop_requested_) {  // a rank that did not call stop() is named with this text
    accelerator_.communicator().barrier(comm::internal_call("end of the run after stop()")).wait();
  }
  if (options_.log_every > 0 && logged_step_ < global_step()) log_metrics();
  const bool evaluates =
      !options_.evaluate_every.is_never() && progress_->evaluated_step < global_step() && !signal_received_;
  if (evaluates) evaluate({});
  const bool saves = !accelerator_.project().project_dir.empty() && (evaluates || saved_step_ < global_step());
  if (saves) save_checkpoint({});
}

void TrainerContext::fail_without_data() {
  finish();
  accelerator_.wait_for_checkpoint();
  throw UsageError("Trainer: 2 epochs in a row had no batch, so the run cannot reach max_steps: it is at step " +
                   std::to_string(global_step()) + " of " + std::to_string(*options_.max_steps) +
                   ". The stream has ended and has no reset(), or drop_last leaves no batch of it: add reset(), or set "
                   "max_epochs");
}

Scalars TrainerContext::evaluate(const CallSite& where) {
  const CallSiteScope here(where);
  if (!evaluation_) throw UsageError("Trainer: evaluate() without set_evaluation(): set the evaluation function first");
  if (phase_ == Phase::evaluation) {
    throw UsageError("Trainer: evaluate() during an evaluation, which its function or a callback has called");
  }
  const PausedClock paused(step_began_);
  const Phase before = phase_;
  set_phase(Phase::evaluation);
  const auto exit = c10::make_scope_exit([this, before] {
    trigger(&Callback::on_evaluate_exit);
    set_phase(before);
  });
  trigger(&Callback::on_evaluate_start);
  Scalars results;
  {
    const at::NoGradGuard no_grad;
    const EvaluationMode mode(*module_);
    results = evaluation_();
  }
  results = agreed_results(accelerator_.communicator(), results);
  for (auto& [name, value] : results) name.insert(0, "eval/");
  if (accelerator_.project().retention.keep_best) metric_in(results, options_.checkpoint_metric, "checkpoint_metric");
  last_evaluation_ = results;
  progress_->evaluated_step = global_step();
  saved_step_ = std::min(saved_step_, global_step() - 1);  // a checkpoint of this step has no evaluation
  log(results);
  trigger(&Callback::on_evaluate_end, results);
  return results;
}

std::filesystem::path TrainerContext::save_checkpoint(const CallSite& where) {
  const CallSiteScope here(where);
  accelerator_.state_->require_savable("Trainer: save_checkpoint()");
  const PausedClock paused(step_began_);
  trigger(&Callback::on_checkpoint_start);
  SaveStateOptions save{.asynchronous = options_.asynchronous_checkpoints};
  for (const auto& [name, value] : last_evaluation_) {
    if (name == options_.checkpoint_metric && progress_->evaluated_step == global_step()) save.metric = value;
  }
  const std::filesystem::path folder = accelerator_.save_state(save, {});
  saved_step_ = global_step();
  trigger(&Callback::on_checkpoint_end, folder);
  return folder;
}

}  // namespace tutti
