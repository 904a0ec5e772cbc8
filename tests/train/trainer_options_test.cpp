// Each option of the Trainer and of its callbacks, and the calls of a callback. One rank unless a test says otherwise.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <vector>

#include "support/ranks.h"
#include "train/trainer_run.h"
#include "tutti/train/callbacks/ema.h"

namespace tutti::test::trainer_options_test {
namespace {

/// Calls a function at one of the Trainer's events.
struct AtStep final : Callback {
  std::function<void(TrainerContext&)> starts = [](TrainerContext&) {};
  std::function<void(TrainerContext&)> ends = [](TrainerContext&) {};
  std::function<void(TrainerContext&, const std::filesystem::path&)> saved = [](TrainerContext&,
                                                                                const std::filesystem::path&) {};
  std::vector<std::optional<double>> logged;  ///< weight norms
  void on_log_start(TrainerContext& trainer, Scalars&) override { logged.push_back(trainer.metrics().weight_norm); }
  void on_optimizer_step_start(TrainerContext& trainer) override { starts(trainer); }
  void on_optimizer_step_end(TrainerContext& trainer) override { ends(trainer); }
  void on_checkpoint_end(TrainerContext& trainer, const std::filesystem::path& folder) override {
    saved(trainer, folder);
  }
};

TEST(TrainerContext, ACallbackStopsSavesAndReadsWhatIsThere) {
  const TemporaryFolder folder;
  TrainerRun run(
      {.gradient_accumulation_steps = 2, .project = {.project_dir = folder.path()}, .communicator = Communicator()},
      {.max_steps = 100, .evaluate_every = 2});
  int evaluations = 0;
  run.trainer.set_evaluation([&] { return Scalars{{"loss", 10.0 - ++evaluations}}; });
  const auto callback = std::make_shared<AtStep>();
  std::vector<double> losses;
  std::vector<double> last_evaluations;
  std::filesystem::path saved;
  callback->starts = [&](TrainerContext& trainer) {
    EXPECT_EQ(trainer.local_weight(), 2);  // micro-batches
    losses.push_back(trainer.local_loss() / trainer.local_weight());
    EXPECT_DOUBLE_EQ(trainer.metrics().loss, losses.back());  // one rank: the same as its local loss
    const Scalars& last = trainer.last_evaluation();
    last_evaluations.push_back(last.empty() ? -1 : last.front().second);
    EXPECT_TRUE(last.empty() || last.front().first == "eval/loss");
  };
  callback->ends = [&](TrainerContext& trainer) {
    if (trainer.global_step() == 3) saved = trainer.save_checkpoint();
    if (trainer.global_step() == 5) trainer.stop();
  };
  run.trainer.add_callback(callback);
  testing::internal::CaptureStderr();
  EXPECT_EQ(run.trainer.fit(), StopReason::callback);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "fit() ended at step 5 of 100: a callback called stop()\n");
  EXPECT_EQ(run.trainer.global_step(), 5);
  EXPECT_EQ(losses.size(), 5U);
  EXPECT_EQ(last_evaluations, (std::vector<double>{-1, -1, 9, 9, 8}));
  run.accelerator.wait_for_checkpoint();
  EXPECT_EQ(read_checkpoint_info(saved).step, 3);
}

TEST(TrainerOptions, CheckpointsMayBeWrittenBeforeTrainingGoesOn) {
  const TemporaryFolder folder;
  TrainerRun run({.project = {.project_dir = folder.path()}, .communicator = Communicator()},
                 {.max_steps = 3, .save_every = 1, .asynchronous_checkpoints = false});
  const auto callback = std::make_shared<AtStep>();
  int saves = 0;
  callback->saved = [&](TrainerContext& trainer, const std::filesystem::path& saved) {
    EXPECT_EQ(read_checkpoint(saved).info.step, trainer.global_step());  // the checkpoint is complete
    ++saves;
  };
  run.trainer.add_callback(callback);
  run.trainer.fit();
  EXPECT_EQ(saves, 3);
}

TEST(TrainerOptions, ACheckpointIsWorthTheMetricThatIsChosen) {
  const TemporaryFolder folder;
  TrainerRun run({.project = {.project_dir = folder.path(),
                              .retention = {.keep_last = 1, .keep_best = true, .lower_is_better = false}},
                  .communicator = Communicator()},
                 {.max_steps = 3, .evaluate_every = 1, .save_every = 1, .checkpoint_metric = "eval/accuracy"});
  const std::vector<double> accuracies{0.5, 0.75, 0.25};
  std::size_t next = 0;
  run.trainer.set_evaluation([&] { return Scalars{{"loss", 1.0}, {"accuracy", accuracies.at(next++)}}; });
  run.trainer.fit();
  std::vector<double> kept;
  for (const auto& left : CheckpointFolder(folder.path() / "checkpoints").all()) kept.push_back(left.metric.value());
  EXPECT_EQ(kept, (std::vector<double>{0.75, 0.25}));  // the best and the newest
}

volatile std::sig_atomic_t signals_seen = 0;

TEST(TrainerOptions, SignalsMayBeLeftToTheProgram) {
  TrainerRun run({.communicator = Communicator()}, {.max_steps = 3, .stop_on_signal = false});
  const auto callback = std::make_shared<AtStep>();
  callback->ends = [](TrainerContext& trainer) {
    if (trainer.global_step() == 1) std::raise(SIGINT);
  };
  run.trainer.add_callback(callback);
  signals_seen = 0;
  const auto before = std::signal(SIGINT, [](int) { signals_seen = signals_seen + 1; });
  EXPECT_EQ(run.trainer.fit(), StopReason::finished);
  std::signal(SIGINT, before);
  EXPECT_EQ(run.trainer.global_step(), 3);
  EXPECT_EQ(signals_seen, 1);
}

// Schedulers repeat SIGTERM while the checkpoint is being saved.
TEST(TrainerOptions, ASecondSigtermHasNoEffect) {
  const TemporaryFolder folder;
  TrainerRun run({.project = {.project_dir = folder.path()}, .communicator = Communicator()}, {.max_steps = 3});
  const auto callback = std::make_shared<AtStep>();
  callback->ends = [](TrainerContext&) { std::raise(SIGTERM); };
  callback->saved = [](TrainerContext&, const std::filesystem::path&) { std::raise(SIGTERM); };
  run.trainer.add_callback(callback);
  signals_seen = 0;
  const auto before = std::signal(SIGTERM, [](int) { signals_seen = signals_seen + 1; });
  EXPECT_EQ(run.trainer.fit(), StopReason::signal);
  std::signal(SIGTERM, before);
  EXPECT_EQ(signals_seen, 0);
  EXPECT_TRUE(CheckpointFolder(folder.path() / "checkpoints").newest());
}

// After the last step no rank can tell the others to stop.
TEST(TrainerOptions, ASignalAfterTheLastStepIsLeftToTheProgram) {
  struct RaiseAtTheEnd final : Callback {
    void on_fit_end(TrainerContext&) override { std::raise(SIGTERM); }
  };
  TrainerRun run({.communicator = Communicator()}, {.max_steps = 1});
  run.trainer.add_callback(std::make_shared<RaiseAtTheEnd>());
  signals_seen = 0;
  const auto before = std::signal(SIGTERM, [](int) { signals_seen = signals_seen + 1; });
  EXPECT_EQ(run.trainer.fit(), StopReason::finished);
  std::signal(SIGTERM, before);
  EXPECT_EQ(signals_seen, 1);
}

// One process.
const RankProgram two_signals("trainer_two_signals", [] {
  TrainerRun run({.communicator = Communicator()}, {.max_steps = 3});
  const auto callback = std::make_shared<AtStep>();
  callback->ends = [](TrainerContext&) {
    std::raise(SIGINT);
    std::cout << "after the first" << std::endl;
    std::raise(SIGINT);
    std::cout << "after the second" << std::endl;
  };
  run.trainer.add_callback(callback);
  run.trainer.fit();
});
TEST(TrainerOptions, ASecondSigintEndsTheRunAtOnce) {
  const auto results = run_processes(two_signals, 1);
  EXPECT_EQ(results[0].signal, SIGINT);
  EXPECT_NE(results[0].output.find("after the first"), std::string::npos) << results[0].output;
  EXPECT_EQ(results[0].output.find("after the second"), std::string::npos) << results[0].output;
}

// Two ranks as threads; the second one is slow.
TEST(StepMetrics, CountTokensTimeAndWeights) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    Accelerator accelerator({.communicator = communicator});
    auto loader = accelerator.data_loader(Samples{16}, {.batch_size = 2});
    Mlp net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    Trainer trainer(accelerator, model, optimizer, std::nullopt, loader,
                    {.loss = [](Mlp& mlp, Batch& batch) { return loss_of(mlp->forward(batch.input), batch.target); },
                     .samples = [](const Batch& batch) { return batch.input.size(0); },
                     .tokens = [](const Batch& batch) { return batch.input.numel(); }},
                    quiet({.max_steps = 4, .log_every = 2}));
    const auto recorder = std::make_shared<Recorder>();
    const auto callback = std::make_shared<AtStep>();
    std::vector<double> norms;
    callback->ends = [&](TrainerContext&) {
      double squares = 0;
      for (const at::Tensor& parameter : net->parameters()) squares += parameter.pow(2).sum().item<double>();
      norms.push_back(std::sqrt(squares));
    };
    trainer.add_callback(recorder);
    trainer.add_callback(callback);
    trainer.fit();
    ASSERT_EQ(recorder->metrics.size(), 4U);
    for (std::size_t step = 0; step < 4; ++step) {
      const StepMetrics& metrics = recorder->metrics[step];
      EXPECT_GT(metrics.samples_per_second, 0);
      EXPECT_NEAR(metrics.tokens_per_second / metrics.samples_per_second, 6, 1e-9);  // features of a sample
      EXPECT_GE(metrics.seconds_waiting, 0);
      EXPECT_FALSE(metrics.weight_norm);  // not set in other steps
    }
    // weight_norm is set in logged steps only.
    ASSERT_EQ(callback->logged.size(), 2U);
    for (std::size_t i = 0; i < 2; ++i) EXPECT_NEAR(callback->logged[i].value_or(-1), norms[2 * i + 1], 1e-5);
    // The first rank has waited for the second.
    double waited = 0;
    for (const StepMetrics& metrics : recorder->metrics) waited += metrics.seconds_waiting;
    const at::Tensor longest = at::full({}, waited, at::kDouble);
    communicator.all_reduce(longest, ReduceOp::max).wait();
    EXPECT_GT(longest.item<double>(), 0);
    EXPECT_DOUBLE_EQ(waited, accelerator.stats().seconds_waiting);
  });
  TrainerRun untold({.communicator = Communicator()}, {.max_steps = 1});
  untold.trainer.fit();
  EXPECT_EQ(untold.trainer.metrics().tokens_per_second, 0);
}

TEST(Ema, MayLeaveEvaluationToTheParametersAndWarmsUp) {
  TrainerRun run({.communicator = Communicator()}, {.max_steps = 4, .evaluate_every = 4});
  const auto ema = std::make_shared<Ema>(EmaOptions{.decay = 0.3, .evaluate_average = false});
  const auto callback = std::make_shared<AtStep>();
  at::Tensor expected = run.net->first->weight.detach().clone();
  callback->ends = [&](TrainerContext& trainer) {
    // TensorFlow's warm-up: (1 + steps) / (10 + steps), until that exceeds the decay.
    const auto steps = static_cast<double>(trainer.global_step());
    const double decay = std::min(0.3, (1 + steps) / (10 + steps));
    EXPECT_EQ(decay < 0.3, steps < 3);
    expected = decay * expected + (1 - decay) * run.net->first->weight.detach();
  };
  run.trainer.add_callback(callback);
  run.trainer.add_callback(ema);
  at::Tensor evaluated;
  run.trainer.set_evaluation([&] {
    evaluated = run.net->first->weight.detach().clone();
    return Scalars{{"loss", 1.0}};
  });
  run.trainer.fit();
  EXPECT_TRUE(at::allclose(ema->average().at("first.weight"), expected, 1e-5, 1e-7));
  EXPECT_TRUE(evaluated.equal(run.net->first->weight));
  EXPECT_FALSE(evaluated.equal(ema->average().at("first.weight")));
}

}  // namespace
}  // namespace tutti::test::trainer_options_test
