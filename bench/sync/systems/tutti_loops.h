#pragma once
// The loop of each mode in a tutti program, for all models and batches with a loss_of(model, batch). An epoch has a
// dataset for the loader, and the batches of this rank, each with whether an optimizer step follows.
#include "sync/mode.h"
#include "sync/workload.h"
#include "tutti/train/accelerator.h"

namespace tutti::bench {

template <typename Model>
struct TuttiTraining {
  Accelerator& accelerator;
  Model& model;
  Optimizer& optimizer;
  int batch_size;

  void step() {
    optimizer.step();
    optimizer.zero_grad();
  }
};

/// The loop of baseline and automatic, which differ in the Accelerator's policy.
template <typename Model, typename Epoch>
void loop_without_annotation(TuttiTraining<Model>& training, const Epoch& epoch) {
  for (const auto& [batch, ends_window] : epoch.batches) {
    training.accelerator.backward(loss_of(training.model, batch));
    if (ends_window) training.step();
  }
}

template <typename Model, typename Epoch>
void loop_with_misplaced_no_sync(TuttiTraining<Model>& training, const Epoch& epoch) {
  for (const auto& [batch, ends_window] : epoch.batches) {
    const auto loss = loss_of(training.model, batch);
    {
      auto quiet = training.accelerator.no_sync(training.model, !ends_window);
      training.accelerator.backward(loss);
    }
    if (ends_window) training.step();
  }
}

template <typename Model, typename Epoch>
void loop_with_no_sync(TuttiTraining<Model>& training, const Epoch& epoch) {
  for (const auto& [batch, ends_window] : epoch.batches) {
    {
      auto quiet = training.accelerator.no_sync(training.model, !ends_window);
      training.accelerator.backward(loss_of(training.model, batch));
    }
    if (ends_window) training.step();
  }
}

template <typename Model, typename Epoch>
void loop_with_accumulate(TuttiTraining<Model>& training, const Epoch& epoch) {
  // accumulate() ends the last, short window, because the loader reports the end of the data.
  auto loader = training.accelerator.data_loader(epoch.dataset, {.batch_size = training.batch_size});
  for (const auto& batch : loader) {
    auto window = training.accelerator.accumulate(training.model);
    training.accelerator.backward(loss_of(training.model, batch));
    training.step();
  }
}

template <typename Model, typename Epoch>
void train_with_tutti(Mode mode, TuttiTraining<Model>& training, const Epoch& epoch) {
  switch (mode) {
    case Mode::baseline:
    case Mode::automatic:
      return loop_without_annotation(training, epoch);
    case Mode::no_sync_misplaced:
      return loop_with_misplaced_no_sync(training, epoch);
    case Mode::no_sync:
      return loop_with_no_sync(training, epoch);
    case Mode::accumulate:
      return loop_with_accumulate(training, epoch);
  }
}

}  // namespace tutti::bench
