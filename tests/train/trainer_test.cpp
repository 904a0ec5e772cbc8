// The Trainer and its callbacks.
#include "tutti/train/trainer.h"

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cmath>
#include <csignal>
#include <limits>

#include "support/rank_case.h"
#include "train/training_run.h"
#include "tutti/checkpoint/model_file.h"
#include "tutti/core/error.h"
#include "tutti/optim/schedules.h"
#include "tutti/train/callbacks/best_model.h"
#include "tutti/train/callbacks/early_stopping.h"
#include "tutti/train/callbacks/ema.h"
#include "tutti/train/callbacks/nan_guard.h"

namespace tutti::test {
namespace {

TrainerOptions quiet(TrainerOptions options) {
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

TEST(Trainer, EventsComeInOrder) {
  const TemporaryFolder scratch;
  TrainerRun run(
      {.gradient_accumulation_steps = 2, .project = {.project_dir = scratch.path()}, .communicator = Communicator()},
      {.max_steps = 1, .log_every = 1, .evaluate_every = 1, .save_every = 1});
  run.trainer.set_evaluation([] { return Scalars{{"loss", 1.0}}; });
  const auto recorder = std::make_shared<Recorder>();
  run.trainer.add_callback(recorder);
  EXPECT_EQ(run.trainer.fit(), StopReason::finished);
  EXPECT_EQ(recorder->events,
            (std::vector<std::string>{"fit start", "epoch start", "step start", "step end", "step start",
                                      "optimizer step start", "optimizer step end", "log start", "log end",
                                      "evaluate start", "log start", "log end", "evaluate end", "checkpoint start",
                                      "checkpoint end", "step end", "fit end"}));
}

// All of it can be done by hand.
const RankCase same_as_by_hand("same_as_by_hand", [](const Communicator& communicator) {
  const AcceleratorOptions options{.gradient_accumulation_steps = 3, .communicator = communicator};
  TrainerRun run(options, {.max_epochs = 2, .max_grad_norm = 0.5});
  const auto recorder = std::make_shared<Recorder>();
  run.trainer.add_callback(recorder);
  EXPECT_EQ(run.trainer.fit(), StopReason::finished);

  Accelerator accelerator(options);
  auto loader = accelerator.data_loader(Samples{22}, {.batch_size = 2, .shuffle = true, .seed = 5});
  Noisy net(0);
  auto [model, optimizer, scheduler] =
      accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.05), linear_with_warmup(2, 30));
  std::size_t step = 0;
  double loss_sum = 0, count = 0;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& batch : loader) {
      const auto window = accelerator.accumulate(model);
      const at::Tensor loss = loss_of(model->forward(batch.input), batch.target);
      accelerator.backward(loss);
      loss_sum += loss.item<double>();
      ++count;
      const auto norm = accelerator.clip_grad_norm_(model, 0.5);
      const double rate = optimizer.learning_rate();
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      if (!norm) continue;
      const at::Tensor totals = at::tensor({loss_sum, count}, at::kDouble);
      communicator.all_reduce(totals).wait();
      loss_sum = count = 0;
      ASSERT_LT(step, recorder->metrics.size());
      const StepMetrics& metrics = recorder->metrics[step++];
      EXPECT_EQ(metrics.global_step, static_cast<std::int64_t>(step));
      EXPECT_DOUBLE_EQ(metrics.loss, (totals[0] / totals[1]).item<double>());
      EXPECT_EQ(metrics.grad_norm_pre_clip, *norm);
      EXPECT_NEAR(metrics.grad_norm_post_clip, std::min(*norm, 0.5), 1e-5);
      EXPECT_EQ(metrics.learning_rate, rate);
      EXPECT_GT(metrics.samples_per_second, 0);
    }
  }
  EXPECT_EQ(step, recorder->metrics.size());
  EXPECT_TRUE(bytes_of(*run.net) == bytes_of(*net));
  EXPECT_DOUBLE_EQ(recorder->metrics.back().epoch, 2.0);
});
TEST(Trainer, DoesWhatALoopByHandDoes) {
  same_as_by_hand.everywhere();
}

// The step's loss is the window's mean by weight, over ranks that hold different numbers of tokens.
const RankCase weighted_loss("weighted_loss", [](const Communicator& communicator) {
  Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator});
  auto loader = accelerator.data_loader(Samples{4 * communicator.size()}, {.batch_size = 1});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.0));
  const double mine = 1.0 + communicator.rank();
  Trainer trainer(
      accelerator, model, optimizer, std::nullopt, loader,
      {.loss = [&](Mlp& mlp, Batch& batch) { return loss_of(mlp->forward(batch.input), batch.target) * mine; },
       .weight = [&](const Batch&) { return mine; }},
      quiet({.max_steps = 1}));
  trainer.fit();
  double sum = 0, weights = 0;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    for (int pass = 0; pass < 2; ++pass) {
      const Batch batch = batch_of(pass * communicator.size() + rank, at::kFloat, 1);
      sum += loss_of(net->forward(batch.input), batch.target).item<double>() * (1.0 + rank);
      weights += 1.0 + rank;
    }
  }
  EXPECT_NEAR(trainer.metrics().loss, sum / weights, 1e-6);
});
TEST(Trainer, TheLossIsTheWindowsMeanByWeight) {
  weighted_loss.everywhere();
}

// The whole of fit() interrupted and resumed, with callbacks that have a state.
const RankCase trainer_resumes("trainer_resumes", [](const Communicator& communicator) {
  const TemporaryFolder whole_folder, torn_folder;
  const auto folder_of = [&](const TemporaryFolder& scratch) {
    return communicator.broadcast_object(scratch.path().string());
  };
  const auto run = [&](const std::string& folder, std::int64_t steps) {
    TrainerRun one({.gradient_accumulation_steps = 2, .project = {.project_dir = folder}, .communicator = communicator},
                   {.max_steps = steps, .max_grad_norm = 1.0, .save_every = 2, .resume = true}, 0.5);
    torch::manual_seed(100 + static_cast<std::uint64_t>(communicator.rank()));
    const auto ema = std::make_shared<Ema>(EmaOptions{.decay = 0.9});
    one.trainer.add_callback(ema);
    one.trainer.fit();
    std::string bytes = bytes_of(*one.net);
    for (const auto& [name, average] : ema->average()) {
      bytes.append(static_cast<const char*>(average.const_data_ptr()), average.nbytes());
    }
    return bytes;
  };
  const std::string expected = run(folder_of(whole_folder), 12);
  std::string resumed;
  const std::string folder = folder_of(torn_folder);
  for (const std::int64_t until : {1, 4, 5, 6, 11, 12, 12}) resumed = run(folder, until);
  EXPECT_TRUE(resumed == expected);
  communicator.barrier().wait();
});
TEST(Trainer, ARunInPiecesEndsLikeAWholeOne) {
  trainer_resumes.on_processes({1, 2});
}

const RankCase stops_on_signal("stops_on_signal", [](const Communicator& communicator) {
  const TemporaryFolder scratch;
  const std::string folder = communicator.broadcast_object(scratch.path().string());
  TrainerRun run({.project = {.project_dir = folder}, .communicator = communicator}, {.max_epochs = 1'000'000});
  struct Raise final : Callback {
    void on_optimizer_step_end(TrainerContext& trainer) override {
      // Only one rank gets it.
      if (trainer.global_step() == 3 && trainer.accelerator().is_last_process()) ::raise(SIGINT);
    }
  };
  run.trainer.add_callback(std::make_shared<Raise>());
  EXPECT_EQ(run.trainer.fit(), StopReason::signal);
  EXPECT_EQ(run.trainer.global_step(), 4);
  const auto newest = CheckpointFolder(std::filesystem::path(folder) / "checkpoints").newest();
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->step, 4);
  communicator.barrier().wait();
});
TEST(Trainer, ASignalToOneRankStopsAllWithACheckpoint) {
  stops_on_signal.on_processes({1, 2});
}

TEST(Trainer, RefusesOptionsThatCannotBe) {
  const AcceleratorOptions options{.communicator = Communicator()};
  EXPECT_THROW(TrainerRun(options, {}), UsageError);
  EXPECT_THROW(TrainerRun(options, {.max_steps = -1}), UsageError);
  EXPECT_THROW(TrainerRun(options, {.max_steps = 1, .log_every = -1}), UsageError);
  EXPECT_THROW(TrainerRun(options, {.max_steps = 1, .save_every = 1}), UsageError);
  EXPECT_THROW(TrainerRun(options, {.max_steps = 1, .resume = true}), UsageError);
  TrainerRun run(options, {.max_steps = 1});
  EXPECT_THROW(run.trainer.evaluate(), UsageError);
}

/// A user's own tracker.
struct Listener final : Tracker {
  explicit Listener(std::vector<std::string>& lines) : heard(lines) {}
  void start(const std::string& run, const Hyperparameters& hyperparameters, std::int64_t step) override {
    heard.push_back("start " + run + " " + std::get<std::string>(hyperparameters.at("what")) + " " +
                    std::to_string(step));
  }
  void log(std::int64_t step, const Scalars& scalars) override {
    heard.push_back("log " + std::to_string(step) + " " + scalars.front().first);
  }
  std::vector<std::string>& heard;
};

const RankCase tracks("tracks", [](const Communicator& communicator) {
  const TemporaryFolder scratch;
  const std::filesystem::path folder = communicator.broadcast_object(scratch.path().string());
  std::vector<std::string> heard;
  const auto run_until = [&](std::int64_t steps) {
    TrainerRun run({.project = {.project_dir = folder}, .communicator = communicator},
                   {.max_steps = steps,
                    .log_every = 2,
                    .resume = true,
                    .tensorboard = true,
                    .run_name = "first",
                    .hyperparameters = {{"what", std::string("all of it")}}});
    run.accelerator.add_tracker(std::make_unique<Listener>(heard));
    run.trainer.fit();
  };
  run_until(3);
  run_until(4);
  std::vector<std::string> expected;
  if (communicator.rank() == 0) {
    expected = {"start first all of it 0", "log 2 loss", "log 3 loss", "start first all of it 3", "log 4 loss"};
    EXPECT_TRUE(std::filesystem::exists(folder / "metrics.jsonl"));
    EXPECT_FALSE(std::filesystem::is_empty(folder / "tensorboard"));
  }
  EXPECT_EQ(heard, expected);
  communicator.barrier().wait();
});
TEST(Trainer, TracksOnTheMainProcessAlsoWithAUsersTracker) {
  tracks.on_processes({1, 2});
}

TEST(EarlyStopping, StopsAfterEvaluationsWithoutProgress) {
  TrainerRun run({.communicator = Communicator()}, {.max_steps = 100, .evaluate_every = 1});
  const std::vector<double> losses{5, 4, 4.5, std::numeric_limits<double>::quiet_NaN(), 3, 3, 2.95, 9};
  std::size_t next = 0;
  run.trainer.set_evaluation([&] { return Scalars{{"loss", losses.at(next++)}}; });
  run.trainer.add_callback(std::make_shared<EarlyStopping>(EarlyStoppingOptions{.patience = 3, .min_delta = 0.1}));
  EXPECT_EQ(run.trainer.fit(), StopReason::callback);
  EXPECT_EQ(run.trainer.global_step(), 8);
}

TEST(EarlyStopping, GoesOnFromItsStateAndRefusesAnUnknownMetric) {
  TrainerRun run({.communicator = Communicator()}, {.max_steps = 100});
  EarlyStopping before({.metric = "eval/accuracy", .lower_is_better = false, .patience = 2}),
      after({.metric = "eval/accuracy", .lower_is_better = false, .patience = 2});
  before.on_evaluate_end(run.trainer, {{"eval/accuracy", 0.9}});
  before.on_evaluate_end(run.trainer, {{"eval/accuracy", 0.8}});
  after.load_state_dict(before.state_dict());
  EXPECT_EQ(after.bad_evaluations(), 1);
  EXPECT_THROW(after.on_evaluate_end(run.trainer, {{"eval/loss", 0.8}}), UsageError);
  EXPECT_THROW(EarlyStopping({.patience = 0}), UsageError);
}

const RankCase nan_guard("nan_guard", [](const Communicator& communicator) {
  TrainerRun run({.communicator = communicator}, {.max_steps = 10});
  run.trainer.add_callback(std::make_shared<NanGuard>());
  struct Spoil final : Callback {
    explicit Spoil(TrainerRun& of) : run(of) {}
    void on_step_start(TrainerContext& trainer) override {
      const bool mine = trainer.accelerator().is_last_process() && trainer.global_step() == 2;
      run.factor = mine ? std::numeric_limits<double>::quiet_NaN() : 1.0;
      if (trainer.global_step() == 2) before = bytes_of(trainer.model());
    }
    TrainerRun& run;
    std::string before;
  };
  const auto spoil = std::make_shared<Spoil>(run);
  run.trainer.add_callback(spoil);
  const std::string who = "not finite on rank " + std::to_string(communicator.size() - 1);
  try {
    run.trainer.fit();
    FAIL() << "trained on";
  } catch (const NotFinite& error) {
    EXPECT_NE(std::string(error.what()).find("step 3"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(who), std::string::npos) << error.what();
  }
  EXPECT_TRUE(bytes_of(*run.net) == spoil->before);
});
TEST(NanGuard, NamesTheRankBeforeParametersAreSpoiled) {
  nan_guard.everywhere();
}

TEST(NanGuard, LeavesAnOverflowToTheLossScaler) {
  TrainerRun run(
      {.mixed_precision = Precision::fp16, .grad_scaler = {.init_scale = 3e38}, .communicator = Communicator()},
      {.max_steps = 2});
  const auto recorder = std::make_shared<Recorder>();
  run.trainer.add_callback(recorder);
  run.trainer.add_callback(std::make_shared<NanGuard>());
  EXPECT_EQ(run.trainer.fit(), StopReason::finished);
  EXPECT_TRUE(recorder->metrics[0].step_was_skipped);
}

TEST(Ema, IsTheMovingAverageAndStepsAsideAfterEvaluation) {
  TrainerRun run({.communicator = Communicator()}, {.max_steps = 3, .evaluate_every = 3});
  const auto ema = std::make_shared<Ema>(EmaOptions{.decay = 0.8, .warmup = false});
  struct Watch final : Callback {
    at::Tensor expected;
    at::Tensor last;
    void on_fit_start(TrainerContext& trainer) override { expected = weight(trainer).clone(); }
    void on_optimizer_step_end(TrainerContext& trainer) override {
      expected = 0.8 * expected + 0.2 * weight(trainer);
      last = weight(trainer).clone();
    }
    static at::Tensor weight(TrainerContext& trainer) { return trainer.model().parameters()[0].detach(); }
  };
  const auto watch = std::make_shared<Watch>();
  run.trainer.add_callback(watch);
  run.trainer.add_callback(ema);
  at::Tensor evaluated;
  run.trainer.set_evaluation([&] {
    evaluated = run.net->first->weight.detach().clone();
    return Scalars{{"loss", 1.0}};
  });
  run.trainer.fit();
  EXPECT_TRUE(at::allclose(ema->average().at("first.weight"), watch->expected, 1e-5, 1e-7));
  EXPECT_TRUE(at::allclose(evaluated, watch->expected, 1e-5, 1e-7));
  EXPECT_TRUE(run.net->first->weight.equal(watch->last));
  EXPECT_THROW(Ema({.decay = 1}), UsageError);
}

TEST(BestModel, KeepsTheModelOfTheBestEvaluation) {
  const TemporaryFolder scratch;
  TrainerRun run({.project = {.project_dir = scratch.path()}, .communicator = Communicator()},
                 {.max_steps = 3, .evaluate_every = 1});
  const std::vector<double> losses{2, 1, 3};
  std::size_t next = 0;
  std::string best;
  run.trainer.set_evaluation([&] {
    if (next == 1) best = bytes_of(*run.net);
    return Scalars{{"loss", losses.at(next++)}};
  });
  const auto callback = std::make_shared<BestModel>();
  run.trainer.add_callback(callback);
  run.trainer.fit();
  EXPECT_EQ(callback->best(), 1);
  Noisy loaded;
  load_model(*loaded, scratch.path() / "best_model.safetensors");
  EXPECT_TRUE(bytes_of(*loaded) == best);
}

TEST(StageClock, GivesEveryMomentToOneStage) {
  double waited = 0;
  auto now = StageClock::Clock::time_point{};
  const auto pass = [&now](int seconds) { now += std::chrono::seconds(seconds); };
  StageClock clock([&] { return waited; }, [&] { return now; });
  pass(1);
  clock.measure(Stage::backward, [&] {
    pass(5);
    waited += 2;
  });
  clock.measure(Stage::optimizer, [&] {
    pass(1);
    clock.measure(Stage::data, [&] { pass(3); });
    pass(1);
  });
  pass(4);
  const StageSeconds seconds = clock.take();
  EXPECT_EQ(seconds, (StageSeconds{3, 0, 3, 2, 2, 5}));
  EXPECT_EQ(clock.take(), StageSeconds{});
}

}  // namespace
}  // namespace tutti::test
