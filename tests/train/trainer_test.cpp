// The Trainer.
#include "tutti/train/trainer.h"

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <csignal>
#include <limits>

#include "support/rank_case.h"
#include "train/trainer_run.h"
#include "tutti/core/error.h"
#include "tutti/optim/schedules.h"
#include "tutti/train/callbacks/ema.h"
#include "tutti/train/callbacks/nan_guard.h"

namespace tutti::test::trainer_test {
namespace {

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

// A loop by hand gives the same results.
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
      EXPECT_NEAR(metrics.grad_norm_post_clip, std::min<double>(*norm, 0.5), 1e-5);
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

// Filler batches have loss 0 and weight 0, also where their loss is not finite.
const RankCase filler_losses("filler_losses", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  auto loader = accelerator.data_loader(Samples{communicator.size() + 1}, {.batch_size = 1, .even_batches = false});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  double filler_loss = 1;
  Trainer trainer(accelerator, model, optimizer, std::nullopt, loader,
                  {.loss =
                       [&](Mlp& mlp, Batch& batch) {
                         return mlp->forward(batch.input).sum() * 0 + (accelerator.on_filler_batch() ? filler_loss : 1);
                       }},
                  quiet({.max_epochs = 2}));
  const auto recorder = std::make_shared<Recorder>();
  struct NextEpoch final : Callback {
    explicit NextEpoch(double& loss) : filler_loss(loss) {}
    void on_epoch_end(TrainerContext&) override { filler_loss = std::numeric_limits<double>::infinity(); }
    double& filler_loss;
  };
  trainer.add_callback(recorder);
  trainer.add_callback(std::make_shared<NextEpoch>(filler_loss));
  trainer.add_callback(std::make_shared<NanGuard>());
  const auto join = accelerator.join_uneven_inputs();
  EXPECT_EQ(trainer.fit(), StopReason::finished);
  ASSERT_EQ(recorder->metrics.size(), 4U);  // the second and the fourth step have one actual batch
  for (const StepMetrics& metrics : recorder->metrics) EXPECT_DOUBLE_EQ(metrics.loss, 1);
});
TEST(Trainer, FillerBatchesAddNothingToTheLoss) {
  filler_losses.everywhere();
}

// 11 batches on one rank, 6 on two, 4 on three: the last window of an epoch is short, or not.
const RankCase schedule_of_micro_batches("schedule_of_micro_batches", [](const Communicator& communicator) {
  for (const ScheduleRule rule :
       {ScheduleRule::optimizer_step, ScheduleRule::accelerate, ScheduleRule::accelerate_micro_batch}) {
    const std::int64_t length = total_steps(rule, {.dataset_size = 22,
                                                   .batch_size = 2,
                                                   .num_processes = communicator.size(),
                                                   .gradient_accumulation_steps = 4,
                                                   .num_epochs = 2});
    Accelerator accelerator(
        {.gradient_accumulation_plugin = GradientAccumulationPlugin{.num_steps = 4, .schedule_rule = rule},
         .communicator = communicator});
    auto loader = accelerator.data_loader(Samples{22}, {.batch_size = 2});
    Mlp net;
    auto [model, optimizer, scheduler] =
        accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1), linear_with_warmup(0, length));
    Trainer trainer(accelerator, model, optimizer, scheduler, loader,
                    {.loss = [](Mlp& mlp, Batch& batch) { return loss_of(mlp->forward(batch.input), batch.target); }},
                    quiet({.max_epochs = 2}));
    trainer.fit();
    EXPECT_EQ(scheduler.position(), length);
    EXPECT_EQ(optimizer.learning_rate(), 0);
  }
});
TEST(Trainer, ASchedulePreparedForTheWholeRunEndsWithIt) {
  schedule_of_micro_batches.on_threads({1, 2, 3});
}

// fit() is interrupted and resumed, with callbacks that have a state.
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
  TrainerRun run({.project = {.project_dir = folder}, .communicator = communicator},
                 {.max_epochs = 1'000'000, .evaluate_every = 3});
  int evaluations = 0;
  run.trainer.set_evaluation([&] {
    ++evaluations;
    return Scalars{{"loss", 1.0}};
  });
  struct Raise final : Callback {
    void on_optimizer_step_end(TrainerContext& trainer) override {
      // Only one rank receives the signal.
      if (trainer.global_step() == 3 && trainer.accelerator().is_last_process()) ::raise(SIGINT);
    }
  };
  run.trainer.add_callback(std::make_shared<Raise>());
  testing::internal::CaptureStderr();
  EXPECT_EQ(run.trainer.fit(), StopReason::signal);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(said.find("fit() ended at step 4: a signal") != std::string::npos, communicator.rank() == 0) << said;
  EXPECT_EQ(run.trainer.global_step(), 4);
  const auto newest = CheckpointFolder(std::filesystem::path(folder) / "checkpoints").newest();
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->step, 4);
  EXPECT_FALSE(newest->metric);
  EXPECT_EQ(evaluations, 1);  // of step 3
  ::raise(SIGTERM);           // the scheduler's signal to this rank comes later
  communicator.barrier().wait();
});
TEST(Trainer, ASignalToOneRankStopsAllWithACheckpoint) {
  stops_on_signal.on_processes({1, 2});
}

/// Counts evaluations.
struct CountsEvaluations final : Callback {
  std::int64_t value = 0;
  void on_evaluate_end(TrainerContext&, const Scalars&) override { ++value; }
  std::string name() const override { return "count"; }
  StateDict state_dict() const override {
    StateDict state;
    state.set("value", value);
    return state;
  }
  void load_state_dict(const StateDict& state) override { value = state.get<std::int64_t>("value"); }
};

// The evaluation at the end precedes the last checkpoint, and no step is saved twice.
const RankCase metric_of_its_step("metric_of_its_step", [](const Communicator& communicator) {
  for (const bool by_epochs : {true, false}) {
    const TemporaryFolder scratch;
    const std::filesystem::path folder = communicator.broadcast_object(scratch.path().string());
    TrainerOptions options{.evaluate_every = 4, .save_every = 1};
    (by_epochs ? options.max_epochs : options.max_steps) = by_epochs ? 2 : 6;
    TrainerRun run({.project = {.project_dir = folder}, .communicator = communicator}, options);
    run.trainer.set_evaluation([&] { return Scalars{{"loss", static_cast<double>(run.trainer.global_step())}}; });
    const auto count = std::make_shared<CountsEvaluations>();
    run.trainer.add_callback(count);
    run.trainer.fit();
    const std::int64_t last = by_epochs ? 2 * run.loader.size() : 6;
    ASSERT_EQ(run.trainer.global_step(), last);

    const auto saved = CheckpointFolder(folder / "checkpoints").all();
    EXPECT_EQ(static_cast<std::int64_t>(saved.size()), last);
    for (const CheckpointInfo& info : saved) {
      const bool evaluated = info.step % 4 == 0 || info.step == last;
      EXPECT_EQ(info.metric.value_or(-1), evaluated ? static_cast<double>(info.step) : -1) << info.step;
    }
    const auto newest = CheckpointFolder(folder / "checkpoints").newest();
    ASSERT_TRUE(newest);
    EXPECT_EQ(newest->step, last);
    const StateDict state = read_checkpoint(newest->folder).shared.at("object_callback_count");
    EXPECT_EQ(state.get<std::int64_t>("value"), count->value);
    EXPECT_EQ(count->value, (last + 3) / 4);
    communicator.barrier().wait();
  }
});
TEST(Trainer, ACheckpointHasTheMetricOfItsStepAndTheLastOneThatOfTheEnd) {
  metric_of_its_step.on_threads({1, 2});
}

TEST(Trainer, KeepBestRefusesCheckpointsWithoutAMetric) {
  const TemporaryFolder scratch;
  const AcceleratorOptions best{.project = {.project_dir = scratch.path(), .retention = {.keep_best = true}},
                                .communicator = Communicator()};
  EXPECT_THROW(TrainerRun(best, {.max_steps = 1, .evaluate_every = 2, .save_every = 3}), UsageError);
  EXPECT_NO_THROW(TrainerRun(best, {.max_steps = 1, .evaluate_every = 2, .save_every = 4}));
  EXPECT_NO_THROW(TrainerRun(best, {.max_steps = 1, .evaluate_every = 2}));
  TrainerRun misspelt(best,
                      {.max_steps = 4, .evaluate_every = 2, .save_every = 2, .checkpoint_metric = "eval/accurracy"});
  misspelt.trainer.set_evaluation([] { return Scalars{{"loss", 1.0}, {"accuracy", 0.5}}; });
  try {
    misspelt.trainer.fit();
    ADD_FAILURE() << "the metric is missing";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "checkpoint_metric: there is no evaluation result 'eval/accurracy'; the results are: eval/loss, "
                 "eval/accuracy");
  }
}

TEST(Trainer, AMissingEvaluationIsFoundBeforeTheFirstStep) {
  TrainerRun run({.communicator = Communicator()}, {.max_steps = 4, .evaluate_every = 2});
  EXPECT_THROW(run.trainer.fit(), UsageError);
  EXPECT_EQ(run.trainer.global_step(), 0);
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

}  // namespace
}  // namespace tutti::test::trainer_test
