#pragma once
// The loop around a train step: epochs, evaluation, checkpoints, logging, callbacks. All of it can be done by hand with
// an Accelerator.
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "tutti/core/call_site.h"
#include "tutti/detail/core/call_site_scope.h"
#include "tutti/train/trainer_context.h"

namespace tutti {

/// What a Trainer does with its batches. Only `loss` must be given.
template <typename Model, typename Batch>
struct TrainerFunctions {
  /// The loss of one micro-batch: a mean, or with `weight` a sum that the weights of all ranks divide. It runs under
  /// autocast.
  std::function<at::Tensor(Model&, Batch&)> loss{};
  /// What a micro-batch weighs in its step's mean, for example its number of tokens; 1 unless given.
  std::function<double(const Batch&)> weight{};
  /// How many samples a micro-batch holds, for the rate that is logged; unset: no rate is.
  std::function<std::int64_t(const Batch&)> samples{};
  /// How many tokens a micro-batch holds, for the rate that is logged; unset: no rate is.
  std::function<std::int64_t(const Batch&)> tokens{};
};

/// Trains a prepared model on a loader of the same Accelerator. Every rank makes one and calls its methods alike.
/// Model and loader are referenced and must outlive it. Gradient accumulation, precision and checkpoint folder are the
/// Accelerator's. One thread.
template <detail::model_argument Model, typename Loader>
class Trainer final : public TrainerContext {
 public:
  /// What the loader gives, and the functions take.
  using Batch = typename Loader::Batch;
  /// Give it as `{.loss = ...}`.
  using Functions = TrainerFunctions<Model, Batch>;

  /// `schedule`: a Scheduler, a ReduceLROnPlateau, or std::nullopt. Throws UsageError for options that cannot be
  /// honoured.
  Trainer(Accelerator& accelerator, Model& model,  // misspelt? TrainerOptions{...} names it
          Optimizer optimizer, TrainerSchedule schedule, Loader& loader, Functions functions, TrainerOptions options)
      : TrainerContext(accelerator, detail::shared_module_of(model), std::move(optimizer), std::move(schedule),
                       std::move(options)),
        model_(model),
        loader_(loader),
        functions_(std::move(functions)) {
    if (!functions_.loss) throw UsageError("Trainer: there is no loss function");
  }

  /// Trains to the end, or until a callback or a signal stops it. If the project has a folder the state is saved then.
  StopReason fit(const CallSite& where = CallSite::here()) {
    const CallSiteScope here(where);
    begin_fit(batches_per_epoch());
    trigger(&Callback::on_fit_start);
    while (!done()) {
      trigger(&Callback::on_epoch_start);
      train_an_epoch();
      if (done()) break;
      trigger(&Callback::on_epoch_end);
      ++progress_->epoch;
    }
    trigger(&Callback::on_fit_end);
    return end_fit();
  }

  /// One micro-batch, and the optimizer step where it ends a window. fit() calls it. Every rank must.
  void train_a_step(Batch& batch) {
    trigger(&Callback::on_step_start);
    model_->train();
    const bool counts =
        !accelerator_.on_filler_batch();  // else the batch stands in for data that this rank no longer has
    const double weight = !counts ? 0.0 : functions_.weight ? functions_.weight(batch) : 1.0;
    {
      const auto window = accelerator_.accumulate(model_, {.weight = weight});
      const at::Tensor loss = clock_.measure(
          Stage::forward, [&] { return accelerator_.autocast([&] { return functions_.loss(model_, batch); }); });
      clock_.measure(Stage::backward, [&] { accelerator_.backward(loss, {}); });
      count(loss, weight, counts && functions_.samples ? functions_.samples(batch) : 0,
            counts && functions_.tokens ? functions_.tokens(batch) : 0);
      if (accelerator_.sync_gradients()) optimizer_step(loader_.cursor()->batch_index());
    }
    if (accelerator_.sync_gradients()) after_optimizer_step();
    trigger(&Callback::on_step_end);
  }

 private:
  /// Streams do not know it.
  std::optional<std::int64_t> batches_per_epoch() const {
    if constexpr (requires { loader_.size(); }) {
      return loader_.size();
    } else {
      return std::nullopt;
    }
  }

  void train_an_epoch() {
    auto batch = clock_.measure(Stage::data, [&] { return loader_.begin(); });
    while (batch != loader_.end()) {
      train_a_step(*batch);
      if (done()) {
        finish();  // while the loader knows how far it is
        return;
      }
      clock_.measure(Stage::data, [&] { ++batch; });
    }
  }

  Model& model_;
  Loader& loader_;
  Functions functions_;
};

}  // namespace tutti
