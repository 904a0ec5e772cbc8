#pragma once
// The loop around a training step: epochs, evaluation, checkpoints, logging, callbacks. A program can do the same with
// an Accelerator and its own loop.
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "tutti/detail/core/call_site.h"
#include "tutti/detail/core/call_site_scope.h"
#include "tutti/train/trainer_context.h"

namespace tutti {

/// The functions that a Trainer calls for its batches. Only `loss` is required.
template <typename Model, typename Batch>
struct TrainerFunctions {
  /// Returns the loss of one micro-batch: a mean, or with `weight` a sum, which is divided by the weights of all ranks.
  /// Called under autocast.
  std::function<at::Tensor(Model&, Batch&)> loss{};
  /// Returns the weight of a micro-batch in its step's mean, for example its number of tokens. Unset: 1.
  std::function<double(const Batch&)> weight{};
  /// Returns the number of samples of a micro-batch, for samples_per_second. Unset: not logged.
  std::function<std::int64_t(const Batch&)> samples{};
  /// Returns the number of tokens of a micro-batch, for tokens_per_second. Unset: not logged.
  std::function<std::int64_t(const Batch&)> tokens{};
};

/// Trains a prepared model on a loader of the same Accelerator. Every rank must create one and call its methods in the
/// same order. Model and loader are referenced and must outlive the Trainer. Gradient accumulation, precision and
/// checkpoint folder are set in the Accelerator. Not thread safe.
template <detail::model_argument Model, typename Loader>
class Trainer final : public TrainerContext {
 public:
  /// The type of the loader's batches.
  using Batch = typename Loader::Batch;
  /// Pass it as `{.loss = ...}`.
  using Functions = TrainerFunctions<Model, Batch>;

  /// `schedule`: a Scheduler, a ReduceLROnPlateau, or std::nullopt. Throws UsageError for options that are out of range
  /// or contradict one another.
  Trainer(Accelerator& accelerator, Model& model, Optimizer optimizer, TrainerSchedule schedule, Loader& loader,
          Functions functions, TrainerOptions options)
      : TrainerContext(accelerator, detail::shared_module_of(model), std::move(optimizer), std::move(schedule),
                       std::move(options)),
        model_(model),
        loader_(loader),
        functions_(std::move(functions)) {
    if (!functions_.loss) throw UsageError("Trainer: there is no loss function");
  }

  /// Trains until the end of the run, or until a callback or a signal stops it. Saves a checkpoint at the end if the
  /// project has a folder. Returns the reason why the run ended, and rank 0 writes it to standard error in a line.
  /// After StopReason::signal the run is not complete: a program should then exit with a code other than 0. Without
  /// max_epochs throws UsageError, after the last checkpoint, when 2 epochs in a row have no batch: max_steps cannot be
  /// reached. A further call after stop() goes on with the next epoch of the loader, in the same epoch of the Trainer;
  /// to go on at the batch where the run stopped, resume from the checkpoint. Every rank must call it.
  StopReason fit(const CallSite& where = CallSite::here()) {
    const CallSiteScope here(where);
    const FitScope scope(*this);
    begin_fit(batches_per_epoch());
    trigger(&Callback::on_fit_start);
    make_up_for_evaluation();
    bool was_empty = false;
    while (!done()) {
      trigger(&Callback::on_epoch_start);
      const bool is_empty = !train_an_epoch();
      if (done()) break;
      // A single empty epoch may be the rest of a resumed one.
      if (is_empty && was_empty && !options().max_epochs) fail_without_data();
      was_empty = is_empty;
      end_epoch();
    }
    trigger(&Callback::on_fit_end);
    return end_fit();
  }

  /// Runs one micro-batch and, if it ends a window, the optimizer step. fit() calls it. Every rank must call it.
  void train_a_step(Batch& batch) {
    {
      const StepScope step(*this);
      trigger(&Callback::on_step_start);
      if (!model_->is_training()) model_->train();  // layers that the program has frozen with eval() stay so
      const bool counts = !accelerator_.on_filler_batch();
      const auto own_weight = functions_.weight && counts ? std::optional(functions_.weight(batch)) : std::nullopt;
      const double weight = counts ? own_weight.value_or(1) : 0;
      {
        const auto window = accelerator_.accumulate(model_, {.weight = own_weight});
        const at::Tensor loss = clock_.measure(
            Stage::forward, [&] { return accelerator_.autocast([&] { return functions_.loss(model_, batch); }); });
        clock_.measure(Stage::backward, [&] { accelerator_.backward(loss, /*retain_graph=*/false, {}); });
        count(counts ? loss : loss.new_zeros({}), weight, counts && functions_.samples ? functions_.samples(batch) : 0,
              counts && functions_.tokens ? functions_.tokens(batch) : 0);
        if (accelerator_.sync_gradients()) {
          optimizer_step(loader_.cursor()->batches_of_this_sharding());
        } else {
          schedule_.step();  // for ScheduleRule::accelerate_micro_batch; the other rules advance by 0
        }
      }
    }
    if (accelerator_.sync_gradients()) after_optimizer_step();
    trigger(&Callback::on_step_end);
  }

 private:
  /// nullopt for streams.
  std::optional<std::int64_t> batches_per_epoch() const {
    if constexpr (requires { loader_.size(); }) {
      return loader_.size();
    } else {
      return std::nullopt;
    }
  }

  /// Returns false if the epoch has no batch.
  bool train_an_epoch() {
    auto batch = clock_.measure(Stage::data, [&] { return loader_.begin(); });
    if (batch == loader_.end()) return false;
    while (batch != loader_.end()) {
      train_a_step(*batch);
      if (accelerator_.sync_gradients() && done()) {
        finish();  // inside the loop, so that the loader's position is that of the last step
        break;
      }
      clock_.measure(Stage::data, [&] { ++batch; });
    }
    return true;
  }

  Model& model_;
  Loader& loader_;
  Functions functions_;
};

}  // namespace tutti
