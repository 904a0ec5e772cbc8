// A train step with a schedule, clipping, mixed precision, metrics, callbacks and checkpoints, by hand and with the
// Trainer (docs/guides/train_step.md). Both end with the same parameters.
//
//   tutti launch -n 2 -- guide_train_step FOLDER     # keeps checkpoints and metrics in FOLDER/hand and FOLDER/trainer
#include <ATen/Parallel.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>
#include <tutti/comm/communicator.h>
#include <tutti/optim/schedules.h>
#include <tutti/train/accelerator.h>
#include <tutti/train/callbacks/early_stopping.h>
#include <tutti/train/callbacks/nan_guard.h>
#include <tutti/train/trainer.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

#include "digest.h"
#include "guides/toy.h"

namespace {

constexpr int accumulation = 2;
constexpr std::int64_t batch_size = 16;
constexpr std::int64_t samples = 1024;
constexpr std::int64_t epochs = 4;

/// The inputs of both loops: the same data, weights and schedule.
struct Setting {
  explicit Setting(const tutti::Communicator& communicator, const std::filesystem::path& project)
      : accelerator({.gradient_accumulation_steps = accumulation,
                     .mixed_precision = tutti::Precision::bf16,
                     .project = {.project_dir = project, .retention = {.keep_last = 2}},
                     .communicator = communicator.duplicate(project.filename())}),
        loader(accelerator.data_loader(toy::Points(samples), {.batch_size = batch_size, .shuffle = true})),
        test_loader(accelerator.data_loader(toy::Points(256, 7), {.batch_size = 32})) {}

  /// Optimizer steps of the whole run, for the schedule.
  std::int64_t total_steps() const {
    return tutti::total_steps(tutti::ScheduleRule::optimizer_step, {.dataset_size = samples,
                                                                    .batch_size = batch_size,
                                                                    .num_processes = accelerator.num_processes(),
                                                                    .gradient_accumulation_steps = accumulation,
                                                                    .num_epochs = epochs});
  }

  /// Mean loss over the test data. Every rank must call it.
  double evaluate(torch::nn::Sequential& net) {
    const torch::NoGradGuard no_grad;
    const at::Tensor sums = at::zeros({2}, at::kDouble);
    for (auto& batch : test_loader) {
      const auto errors = (net->forward(batch.data) - batch.target).square();
      // Counts each sample once, although the loader repeats samples in the last batches.
      const auto all = accelerator.gather_for_metrics(errors);
      sums[0] += all.sum();
      sums[1] += all.numel();
    }
    return (sums[0] / sums[1]).item<double>();
  }

  tutti::Accelerator accelerator;
  tutti::DataLoader<toy::Points> loader;
  tutti::DataLoader<toy::Points> test_loader;
};

void by_hand(const tutti::Communicator& communicator, const std::filesystem::path& project) {
  Setting setting(communicator, project);
  auto& accelerator = setting.accelerator;
  auto net = toy::make_net();
  auto [model, optimizer, scheduler] =
      accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-2),
                          tutti::cosine_with_warmup(setting.total_steps() / 10, setting.total_steps()));
  std::int64_t step = 0;
  if (const auto resumed = accelerator.load_latest_state()) step = resumed->step;
  accelerator.init_trackers("by hand", {{"lr", 1e-2}, {"accumulation", std::int64_t{accumulation}}}, step);

  while (setting.loader.epoch() < epochs) {
    for (auto& batch : setting.loader) {
      model->train();
      const auto window = accelerator.accumulate(model);
      const auto loss = accelerator.autocast([&] { return torch::mse_loss(model->forward(batch.data), batch.target); });
      accelerator.backward(loss);
      const auto norm = accelerator.clip_grad_norm_(model, 1.0);  // before clipping, in the window's last scope
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      if (!accelerator.sync_gradients()) continue;  // not an optimizer step
      if (++step % 10 != 0) continue;
      const auto mean = accelerator.reduce(loss.detach(), tutti::ReduceOp::mean);
      accelerator.log({{"loss", mean.item<double>()}, {"grad_norm", *norm}, {"lr", optimizer.learning_rate()}}, step);
    }
    accelerator.save_state();  // between windows, on all ranks
  }
  model->eval();
  accelerator.print("by hand: " + std::to_string(step) + " steps, test loss " +
                    std::to_string(setting.evaluate(model)) + ", digest " + digest(*model));
}

/// A callback that keeps the largest gradient norm, also after a resume.
struct LargestNorm final : tutti::Callback {
  std::string name() const override { return "largest_norm"; }
  tutti::StateDict state_dict() const override {
    tutti::StateDict state;
    state.set("largest", largest);
    return state;
  }
  void load_state_dict(const tutti::StateDict& state) override { largest = state.get<double>("largest"); }
  void on_optimizer_step_start(tutti::TrainerContext& trainer) override {
    largest = std::max<double>(largest, trainer.metrics().grad_norm_pre_clip);
  }

  double largest = 0;
};

/// Returns false if a signal has interrupted the run.
bool with_the_trainer(const tutti::Communicator& communicator, const std::filesystem::path& project) {
  Setting setting(communicator, project);
  auto& accelerator = setting.accelerator;
  auto net = toy::make_net();
  auto [model, optimizer, scheduler] =
      accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-2),
                          tutti::cosine_with_warmup(setting.total_steps() / 10, setting.total_steps()));
  using Functions = tutti::TrainerFunctions<torch::nn::Sequential, torch::data::Example<>>;
  tutti::Trainer trainer(
      accelerator, model, optimizer, scheduler, setting.loader,
      Functions{
          .loss = [](auto& some, auto& batch) { return torch::mse_loss(some->forward(batch.data), batch.target); },
          .samples = [](const auto& batch) { return batch.data.size(0); }},
      {.max_epochs = epochs,
       .max_grad_norm = 1.0,
       .log_every = 10,
       .evaluate_every = 20,
       .save_every = 20,
       .resume = true,
       .progress_bar = false,
       .run_name = "with the Trainer"});
  trainer.set_evaluation([&] { return tutti::Scalars{{"loss", setting.evaluate(model)}}; });
  const auto norms = std::make_shared<LargestNorm>();
  trainer.add_callback(norms);
  trainer.add_callback(std::make_shared<tutti::NanGuard>());
  trainer.add_callback(std::make_shared<tutti::EarlyStopping>(tutti::EarlyStoppingOptions{.patience = 50}));
  if (trainer.fit() == tutti::StopReason::signal) return false;
  const double test_loss = trainer.evaluate().at(0).second;
  accelerator.print("with the Trainer: " + std::to_string(trainer.global_step()) + " steps, test loss " +
                    std::to_string(test_loss) + ", digest " + digest(*model) + ", largest norm " +
                    std::to_string(norms->largest));
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw tutti::UsageError("missing argument: a folder for checkpoints and metrics");
    at::set_num_threads(1);
    const auto communicator = tutti::Communicator::connect(tutti::read_environment());
    by_hand(communicator, std::filesystem::path(argv[1]) / "hand");
    const bool complete = with_the_trainer(communicator, std::filesystem::path(argv[1]) / "trainer");
    return complete ? 0 : 130;  // 130: a shell's exit code for SIGINT
  } catch (const std::exception& error) {
    std::cerr << "train_step: " << error.what() << '\n';
    return 1;
  }
}
