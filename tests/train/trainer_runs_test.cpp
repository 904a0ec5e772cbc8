// What surrounds the steps of a Trainer's run: its project folder, its callbacks, signal handlers, and the stop.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "optim/refused.h"
#include "support/rank_case.h"
#include "support/temporary_folder.h"
#include "train/project_lock.h"
#include "train/trainer_run.h"
#include "tutti/core/error.h"
#include "tutti/train/callbacks/early_stopping.h"
#include "tutti/train/callbacks/ema.h"

namespace tutti::test::trainer_runs_test {
namespace {

const RankCase changes_callbacks("changes_callbacks", [](const Communicator& communicator) {
  const TemporaryFolder scratch;
  const std::string folder = communicator.broadcast_object(scratch.path().string());
  const auto ema = std::make_shared<Ema>(EmaOptions{.decay = 0.9});
  const auto early_stopping = std::make_shared<EarlyStopping>(EarlyStoppingOptions{.patience = 1});
  std::string said;
  const auto run = [&](const std::shared_ptr<Callback>& callback, std::int64_t steps) {
    TrainerRun one({.project = {.project_dir = folder}, .communicator = communicator},
                   {.max_steps = steps, .evaluate_every = 1, .resume = true});
    one.trainer.set_evaluation([&] { return Scalars{{"loss", static_cast<double>(one.trainer.global_step())}}; });
    one.trainer.add_callback(callback);
    testing::internal::CaptureStderr();
    const StopReason reason = one.trainer.fit();
    said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(one.trainer.global_step(), steps);
    return reason;
  };
  EXPECT_EQ(run(ema, 2), StopReason::finished);
  // Without the state of step 2, so the evaluation of step 3 is its first.
  EXPECT_EQ(run(early_stopping, 3), StopReason::finished);
  const bool logs = communicator.rank() == 0;
  EXPECT_EQ(said.find("holds no 'object_callback_early_stopping': the callback begins without") != std::string::npos,
            logs)
      << said;
  EXPECT_EQ(said.find("holds 'object_callback_ema', the state of a callback that this program does not have") !=
                std::string::npos,
            logs)
      << said;
  EXPECT_EQ(run(early_stopping, 4), StopReason::callback) << "the second, which is worse";
  communicator.barrier().wait();
});
TEST(TrainerRuns, AResumedRunMayHaveOtherCallbacks) {
  changes_callbacks.on_processes({1, 2});
}

/// A stream that can be read only once.
struct ReadOnce {
  std::int64_t left = 0;
  std::optional<Batch> get_batch(std::size_t size) {
    if (left <= 0) return std::nullopt;
    left -= static_cast<std::int64_t>(size);
    return batch_of(left, at::kFloat, static_cast<std::int64_t>(size));
  }
};
const RankCase ended_stream("trainer_ended_stream", [](const Communicator& communicator) {
  const TemporaryFolder scratch;
  const std::string folder = communicator.broadcast_object(scratch.path().string());
  Accelerator accelerator({.project = {.project_dir = folder}, .communicator = communicator});
  auto loader = accelerator.data_loader(ReadOnce{6 * communicator.size()}, {.batch_size = 2});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  Trainer trainer(accelerator, model, optimizer, std::nullopt, loader,
                  {.loss = [](Mlp& mlp, Batch& batch) { return loss_of(mlp->forward(batch.input), batch.target); }},
                  quiet({.max_steps = 10}));
  expect_refused<UsageError>([&] { trainer.fit(); }, "2 epochs in a row had no batch");
  EXPECT_EQ(trainer.global_step(), 3);
  accelerator.wait_for_checkpoint();
  EXPECT_EQ(CheckpointFolder(accelerator.project().project_dir / "checkpoints").newest()->step, 3);
  communicator.barrier().wait();
});
TEST(TrainerRuns, AStreamThatHasEndedEndsTheRun) {
  ended_stream.on_threads({1, 2});
}

TEST(TrainerRuns, TwoRunsAtATimeInOneProjectAreRefused) {
  const TemporaryFolder scratch;
  TrainerRun run({.project = {.project_dir = scratch.path()}, .communicator = Communicator()}, {.max_steps = 1});
  {
    const ProjectLock other(scratch.path());
    try {
      run.trainer.fit();
      ADD_FAILURE() << "no exception";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("process " + std::to_string(::getpid())), std::string::npos)
          << error.what();
      EXPECT_NE(std::string(error.what()).find("choose another project_dir"), std::string::npos) << error.what();
    }
  }
  run.trainer.fit();
  const ProjectLock after(scratch.path());
}

const RankCase on_different_disks("on_different_disks", [](const Communicator& communicator) {
  const TemporaryFolder own;
  TrainerRun run({.project = {.project_dir = own.path()}, .communicator = communicator}, {.max_steps = 1});
  if (communicator.size() == 1) {
    EXPECT_EQ(run.trainer.fit(), StopReason::finished);
    return;
  }
  try {
    run.trainer.fit();
    ADD_FAILURE() << "the first save would fail";
  } catch (const CheckpointError& error) {
    EXPECT_NE(std::string(error.what()).find("all ranks must share one file system"), std::string::npos)
        << error.what();
  }
});
TEST(TrainerRuns, ProjectsOnDifferentDisksAreRefusedBeforeTheFirstStep) {
  on_different_disks.on_threads({1, 2});
}

TEST(TrainerRuns, ASecondTrainerInOneProjectIsRefused) {
  const TemporaryFolder scratch;
  Accelerator accelerator({.project = {.project_dir = scratch.path()}, .communicator = Communicator()});
  auto loader = accelerator.data_loader(Samples{22}, {.batch_size = 2});
  Noisy net(0);
  const auto optimizer = std::get<1>(accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.05)));
  const auto make_trainer = [&] {
    return std::make_unique<Trainer<Noisy, DataLoader<Samples>>>(
        accelerator, net, optimizer, std::nullopt, loader,
        TrainerFunctions<Noisy, Batch>{
            .loss = [](Noisy& noisy, Batch& batch) { return loss_of(noisy->forward(batch.input), batch.target); }},
        quiet({.max_steps = 1}));
  };
  auto trainer = make_trainer();
  trainer->fit();
  trainer->fit();  // the same one goes on
  trainer.reset();
  trainer = make_trainer();
  EXPECT_THROW(trainer->fit(), UsageError);
}

void (*handler_of(int signal))(int) {
  struct sigaction action {};
  ::sigaction(signal, nullptr, &action);
  return action.sa_handler;
}

TEST(TrainerRuns, AnExceptionRestoresTheSignalHandlers) {
  const auto term = handler_of(SIGTERM);
  const auto interrupt = handler_of(SIGINT);
  struct ThrowOnce final : Callback {
    bool throws = true;
    void on_fit_start(TrainerContext&) override {
      if (std::exchange(throws, false)) throw std::runtime_error("once");
    }
  };
  TrainerRun run({.communicator = Communicator()}, {.max_steps = 1});
  run.trainer.add_callback(std::make_shared<ThrowOnce>());
  EXPECT_THROW(run.trainer.fit(), std::runtime_error);
  for (int time = 0; time < 2; ++time) {
    EXPECT_EQ(handler_of(SIGTERM), term);
    EXPECT_EQ(handler_of(SIGINT), interrupt);
    if (time == 0) run.trainer.fit();
  }
}

TEST(TrainerRuns, RanksThatAreThreadsRestoreTheSignalHandlers) {
  const auto term = std::signal(SIGTERM, SIG_DFL);
  const auto interrupt = std::signal(SIGINT, SIG_DFL);
  run_thread_ranks(2, [](const Communicator& communicator) {
    TrainerRun run({.communicator = communicator}, {.max_steps = 2});
    run.trainer.fit();
  });
  EXPECT_EQ(std::signal(SIGTERM, term), SIG_DFL);
  EXPECT_EQ(std::signal(SIGINT, interrupt), SIG_DFL);
}

const RankCase left_out_evaluation("left_out_evaluation", [](const Communicator& communicator) {
  const TemporaryFolder scratch;
  const std::string folder = communicator.broadcast_object(scratch.path().string());
  struct Raise final : Callback {
    void on_optimizer_step_end(TrainerContext& trainer) override {
      if (trainer.global_step() == 2 && trainer.accelerator().is_last_process()) ::raise(SIGTERM);
    }
  };
  const auto evaluated_in = [&](StopReason reason) {
    TrainerRun run({.project = {.project_dir = folder}, .communicator = communicator},
                   {.max_steps = 5, .evaluate_every = 3, .resume = true});
    std::vector<std::int64_t> steps;
    run.trainer.set_evaluation([&] {
      steps.push_back(run.trainer.global_step());
      return Scalars{{"loss", 1.0}};
    });
    run.trainer.add_callback(std::make_shared<Raise>());
    EXPECT_EQ(run.trainer.fit(), reason);
    return steps;
  };
  using Steps = std::vector<std::int64_t>;
  EXPECT_EQ(evaluated_in(StopReason::signal), Steps{});  // it stops after step 3
  EXPECT_EQ(evaluated_in(StopReason::finished), (Steps{3, 5}));
  EXPECT_EQ(evaluated_in(StopReason::finished), Steps{});
  communicator.barrier().wait();
});
TEST(TrainerRuns, ASignalLeavesADueEvaluationToTheResumedRun) {
  left_out_evaluation.on_processes({1, 2});
}

// Otherwise the resumed run would log the loss of a part of the window.
TEST(TrainerRuns, StopEndsTheRunAfterTheWholeWindow) {
  struct StopInWindow final : Callback {
    void on_step_end(TrainerContext& trainer) override {
      if (!trainer.accelerator().sync_gradients()) trainer.stop();
    }
  };
  TrainerRun run({.gradient_accumulation_steps = 2, .communicator = Communicator()}, {.max_steps = 5});
  run.trainer.add_callback(std::make_shared<StopInWindow>());
  EXPECT_EQ(run.trainer.fit(), StopReason::callback);
  EXPECT_EQ(run.trainer.global_step(), 1);
}

TEST(TrainerRuns, ACheckpointAtTheEndOfAnEpochCountsTheEpoch) {
  struct SaveInEpochEnd final : Callback {
    std::vector<std::int64_t> epochs;
    void on_epoch_end(TrainerContext& trainer) override {
      epochs.push_back(trainer.epoch());
      trainer.save_checkpoint();
    }
  };
  const TemporaryFolder scratch;
  const auto train = [&](std::int64_t max_epochs) {
    TrainerRun run({.project = {.project_dir = scratch.path()}, .communicator = Communicator()},
                   {.max_epochs = max_epochs, .resume = true});
    const auto saves = std::make_shared<SaveInEpochEnd>();
    run.trainer.add_callback(saves);
    run.trainer.fit();
    EXPECT_EQ(run.trainer.epoch(), max_epochs);
    EXPECT_EQ(run.trainer.global_step(), 11 * max_epochs);
    return saves->epochs;
  };
  EXPECT_EQ(train(2), (std::vector<std::int64_t>{0, 1}));
  EXPECT_TRUE(train(2).empty());
  EXPECT_EQ(train(3), (std::vector<std::int64_t>{2}));
}

TEST(TrainerRuns, TensorBoardIsStartedByAFitAfterOneThatCouldNot) {
  const TemporaryFolder scratch;
  TrainerRun run({.project = {.project_dir = scratch.path()}, .communicator = Communicator()},
                 {.max_steps = 1, .tensorboard = true});
  run.accelerator.init_trackers("of the program", {}, 0);
  {
    // The event file's first record fits, the one of start() does not.
    const auto previous_handler = std::signal(SIGXFSZ, SIG_IGN);
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    const rlimit full{.rlim_cur = 48, .rlim_max = before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
    std::string error;
    try {
      run.trainer.fit();
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
    ::setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, previous_handler);
    EXPECT_NE(error.find("tfevents"), std::string::npos) << error;
  }
  const auto event_files = [&scratch] {
    const std::filesystem::directory_iterator files(scratch.path() / "tensorboard");
    return std::distance(begin(files), end(files));
  };
  EXPECT_EQ(event_files(), 1);
  run.trainer.fit();
  EXPECT_EQ(event_files(), 2);
}

TEST(TrainerRuns, TheLearningRateIsThatOfTheStep) {
  struct SetRate final : Callback {
    void on_optimizer_step_start(TrainerContext& trainer) override { trainer.optimizer().set_learning_rate(0.25); }
  };
  TrainerRun run({.communicator = Communicator()}, {.max_steps = 1});
  const auto recorder = std::make_shared<Recorder>();
  run.trainer.add_callback(std::make_shared<SetRate>());
  run.trainer.add_callback(recorder);
  run.trainer.fit();
  EXPECT_EQ(recorder->metrics.at(0).learning_rate, 0.25);
}

struct Starts final : Tracker {
  explicit Starts(std::vector<std::string>& runs) : runs_(runs) {}
  void start(const std::string& run, const Hyperparameters& hyperparameters, std::int64_t step) override {
    runs_.push_back(run + (hyperparameters.contains("rate") ? " with its rate" : "") + " at " + std::to_string(step));
  }
  void log(std::int64_t, const Scalars&) override { runs_.emplace_back("log"); }
  void flush() override { runs_.emplace_back("flush"); }
  std::vector<std::string>& runs_;
};

TEST(TrainerRuns, EachTrackerStartsOnceBeforeItLogs) {
  const TemporaryFolder scratch;
  TrainerRun run({.project = {.project_dir = scratch.path()}, .communicator = Communicator()}, {.max_steps = 1});
  EXPECT_THROW(run.accelerator.log({{"early", 1}}, 0), UsageError);
  std::vector<std::string> before, after;
  run.accelerator.add_tracker(std::make_unique<Starts>(before));
  run.accelerator.init_trackers("of the program");
  run.accelerator.add_tracker(std::make_unique<Starts>(after));
  run.trainer.fit();
  const std::vector<std::string> expected{"of the program at 0", "log", "flush"};  // flushed with the checkpoint
  EXPECT_EQ(before, expected);
  EXPECT_EQ(after, expected);
}

TEST(TrainerRuns, AResumedRunHasTheNameAndHyperparametersOfTheProgram) {
  const TemporaryFolder scratch;
  std::vector<std::string> runs;
  for (const std::int64_t steps : {1, 2}) {
    TrainerRun run({.project = {.project_dir = scratch.path()}, .communicator = Communicator()},
                   {.max_steps = steps, .resume = true});
    run.accelerator.add_tracker(std::make_unique<Starts>(runs));
    run.accelerator.init_trackers("of the program", {{"rate", 0.5}});
    run.trainer.fit();
  }
  EXPECT_EQ(runs, (std::vector<std::string>{"of the program with its rate at 0", "log", "flush",
                                            "of the program with its rate at 1", "log", "flush"}));
}

TEST(TrainerRuns, HyperparametersOfTheProgramAndTheTrainerAreWritten) {
  struct Names final : Tracker {
    explicit Names(std::string& names) : names_(names) {}
    void start(const std::string&, const Hyperparameters& hyperparameters, std::int64_t) override {
      for (const auto& [name, value] : hyperparameters) names_ += name + ' ';
    }
    void log(std::int64_t, const Scalars&) override {}
    std::string& names_;
  };
  std::string names;
  TrainerRun run({.communicator = Communicator()}, {.max_steps = 1, .hyperparameters = {{"of_trainer", 1.0}}});
  run.accelerator.add_tracker(std::make_unique<Names>(names));
  run.accelerator.init_trackers("of the program", {{"of_program", 2.0}});
  run.trainer.fit();
  EXPECT_EQ(names, "of_program of_trainer ");
}

TEST(TrainerRuns, LayersInEvaluationModeStaySo) {
  TrainerRun run({.communicator = Communicator()}, {.max_steps = 2, .evaluate_every = 1});
  run.net->dropout->eval();
  run.trainer.set_evaluation([&] {
    EXPECT_FALSE(run.net->is_training());
    return Scalars{{"loss", 1.0}};
  });
  run.trainer.fit();
  EXPECT_FALSE(run.net->dropout->is_training());
  EXPECT_TRUE(run.net->is_training());
  EXPECT_TRUE(run.net->first->is_training());
  run.net->eval();
  run.trainer.train_a_step(*run.loader.begin());
  EXPECT_TRUE(run.net->is_training());
}

TEST(TrainerRuns, AnAcceleratorHasOneTrainer) {
  TrainerRun run({.communicator = Communicator()}, {.max_steps = 1});
  using Second = Trainer<Noisy, DataLoader<Samples>>;
  expect_refused<UsageError>(
      [&] {
        Second(run.accelerator, run.net, run.trainer.optimizer(), std::nullopt, run.loader,
               {.loss = [](Noisy& model, Batch& batch) { return model->forward(batch.input).sum(); }},
               {.max_steps = 1});
      },
      "the Accelerator has another Trainer");
}

// The values of a run that has failed are void.
TEST(TrainerRuns, ARunThatBeginsAgainStartsItsTrackersAgain) {
  struct ThrowOnce final : Callback {
    bool throws = true;
    void on_optimizer_step_end(TrainerContext&) override {
      if (std::exchange(throws, false)) throw std::runtime_error("once");
    }
  };
  const TemporaryFolder scratch;
  TrainerRun run({.project = {.project_dir = scratch.path()}, .communicator = Communicator()}, {.max_steps = 1});
  std::vector<std::string> runs;
  run.accelerator.add_tracker(std::make_unique<Starts>(runs));
  run.accelerator.init_trackers("of the program");
  run.accelerator.save_state();
  run.trainer.add_callback(std::make_shared<ThrowOnce>());
  EXPECT_THROW(run.trainer.fit(), std::runtime_error);
  run.accelerator.load_latest_state();
  run.trainer.fit();
  EXPECT_EQ(runs, (std::vector<std::string>{"of the program at 0", "of the program at 0", "log", "flush"}));
}

const RankCase differing_options("differing_options", [](const Communicator& communicator) {
  TrainerRun run({.communicator = communicator}, {.max_steps = 2, .log_every = communicator.rank() == 0 ? 1 : 0});
  try {
    run.trainer.fit();
    ADD_FAILURE() << "no exception";
  } catch (const MismatchError& error) {
    EXPECT_STREQ(error.what(),
                 "TrainerOptions::log_every is 1 on rank 0 and 0 on rank 1: pass the same options on all "
                 "ranks (-1: unset)");
  }
});
TEST(TrainerRuns, OptionsThatDifferBetweenRanksAreNamed) {
  differing_options.on_threads({2, 3});
}

}  // namespace
}  // namespace tutti::test::trainer_runs_test
