#pragma once
// A Trainer over a small run, and a callback that records the Trainer's events and metrics.
#include <torch/optim/adamw.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "train/training_run.h"
#include "tutti/optim/schedules.h"
#include "tutti/train/trainer.h"

namespace tutti::test {

inline TrainerOptions quiet(TrainerOptions options) {
  options.progress_bar = false;
  return options;
}

/// A Trainer over a small run.
struct TrainerRun {
  TrainerRun(const AcceleratorOptions& of, TrainerOptions options, double dropout = 0)
      : accelerator(of),
        loader(accelerator.data_loader(Samples{22}, {.batch_size = 2, .shuffle = true, .seed = 5})),
        net(dropout),
        prepared(accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.05), linear_with_warmup(2, 30))),
        trainer(accelerator, net, std::get<1>(prepared), std::get<2>(prepared), loader,
                {.loss = [this](Noisy& model,
                                Batch& batch) { return loss_of(model->forward(batch.input), batch.target) * factor; },
                 .samples = [](const Batch& batch) { return batch.input.size(0); }},
                quiet(std::move(options))) {}

  Accelerator accelerator;
  DataLoader<Samples> loader;
  Noisy net;
  std::tuple<Noisy&, Optimizer, Scheduler> prepared;
  double factor = 1;
  Trainer<Noisy, DataLoader<Samples>> trainer;
};

struct Recorder final : Callback {
  std::vector<std::string> events;
  std::vector<StepMetrics> metrics;
  void on_fit_start(TrainerContext&) override { events.push_back("fit start"); }
  void on_fit_end(TrainerContext&) override { events.push_back("fit end"); }
  void on_epoch_start(TrainerContext&) override { events.push_back("epoch start"); }
  void on_epoch_end(TrainerContext&) override { events.push_back("epoch end"); }
  void on_step_start(TrainerContext&) override { events.push_back("step start"); }
  void on_step_end(TrainerContext&) override { events.push_back("step end"); }
  void on_optimizer_step_start(TrainerContext&) override { events.push_back("optimizer step start"); }
  void on_optimizer_step_end(TrainerContext& trainer) override {
    events.push_back("optimizer step end");
    metrics.push_back(trainer.metrics());
  }
  void on_evaluate_start(TrainerContext&) override { events.push_back("evaluate start"); }
  void on_evaluate_end(TrainerContext&, const Scalars&) override { events.push_back("evaluate end"); }
  void on_checkpoint_start(TrainerContext&) override { events.push_back("checkpoint start"); }
  void on_checkpoint_end(TrainerContext&, const std::filesystem::path&) override { events.push_back("checkpoint end"); }
  void on_log_start(TrainerContext&, Scalars&) override { events.push_back("log start"); }
  void on_log_end(TrainerContext&, const Scalars&) override { events.push_back("log end"); }
};

}  // namespace tutti::test
