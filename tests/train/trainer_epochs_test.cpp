// Evaluation and checkpoints by epochs. 1 and 2 ranks.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "optim/refused.h"
#include "support/rank_case.h"
#include "support/temporary_folder.h"
#include "train/trainer_run.h"
#include "tutti/core/error.h"
#include "tutti/train/callbacks/best_model.h"
#include "tutti/train/callbacks/early_stopping.h"

namespace tutti::test::trainer_epochs_test {
namespace {

constexpr auto every_epoch = TrainerInterval::epochs(1);

/// Records the steps of evaluations, of ends of epochs, and of checkpoints. Sends SIGTERM in one step of the last rank.
struct Events final : Callback {
  std::string log;
  std::int64_t signal_in_step = -1;
  std::string name() const override { return "events"; }
  StateDict state_dict() const override {
    StateDict state;
    state.set("log", log);
    return state;
  }
  void load_state_dict(const StateDict& state) override { log = state.get<std::string>("log"); }
  void on_step_start(TrainerContext& trainer) override {
    if (trainer.global_step() == signal_in_step && trainer.accelerator().is_last_process()) ::raise(SIGTERM);
  }
  void on_evaluate_end(TrainerContext& trainer, const Scalars&) override { add("evaluated", trainer); }
  void on_epoch_end(TrainerContext& trainer) override { add("ended", trainer); }
  void add(const std::string& what, const TrainerContext& trainer) {
    log += what + ' ' + std::to_string(trainer.global_step()) + ' ';
  }
};

std::vector<std::int64_t> saved_steps(const std::filesystem::path& folder) {
  std::vector<std::int64_t> steps;
  for (const CheckpointInfo& info : CheckpointFolder(folder / "checkpoints").all()) steps.push_back(info.step);
  return steps;
}

TEST(TrainerEpochs, EndWithEvaluationThenCallbacksThenCheckpoint) {
  const TemporaryFolder folder;
  TrainerRun run({.project = {.project_dir = folder.path()}, .communicator = Communicator()},
                 {.max_epochs = 5, .evaluate_every = every_epoch, .save_every = TrainerInterval::epochs(2)});
  run.trainer.set_evaluation([] { return Scalars{{"loss", 1.0}}; });
  const auto events = std::make_shared<Events>();
  run.trainer.add_callback(events);
  run.trainer.fit();
  EXPECT_EQ(events->log,
            "evaluated 11 ended 11 evaluated 22 ended 22 evaluated 33 ended 33 evaluated 44 ended 44 "
            "evaluated 55 ended 55 ");
  EXPECT_EQ(saved_steps(folder.path()), (std::vector<std::int64_t>{22, 44, 55}));
  for (const CheckpointInfo& info : CheckpointFolder(folder.path() / "checkpoints").all()) {
    EXPECT_EQ(info.metric, 1.0);
    const StateDict state = read_checkpoint(info.folder).shared.at("object_callback_events");
    EXPECT_TRUE(state.get<std::string>("log").ends_with("ended " + std::to_string(info.step) + ' '));
  }
}

TEST(TrainerEpochs, ARunThatEndsWithinAnEpochIsEvaluatedAndSavedAtItsEnd) {
  const TemporaryFolder folder;
  TrainerRun run({.project = {.project_dir = folder.path()}, .communicator = Communicator()},
                 {.max_steps = 15, .evaluate_every = every_epoch, .save_every = every_epoch});
  run.trainer.set_evaluation([] { return Scalars{{"loss", 1.0}}; });
  const auto events = std::make_shared<Events>();
  run.trainer.add_callback(events);
  run.trainer.fit();
  EXPECT_EQ(events->log, "evaluated 11 ended 11 evaluated 15 ");
  EXPECT_EQ(saved_steps(folder.path()), (std::vector<std::int64_t>{11, 15}));
}

// A signal leaves an evaluation at the end of an epoch to the resumed run, also in the last step of the run.
const RankCase interrupted("trainer_epochs_interrupted", [](const Communicator& communicator) {
  bool best_is_last = false;
  const auto log_of = [&](std::int64_t signal_in_step, std::int64_t epochs) {
    const TemporaryFolder scratch;
    const std::string folder = communicator.broadcast_object(scratch.path().string());
    std::string log;
    for (StopReason reason = StopReason::signal; reason == StopReason::signal;) {
      TrainerRun run({.project = {.project_dir = folder, .retention = {.keep_last = 1, .keep_best = true}},
                      .communicator = communicator},
                     {.max_epochs = epochs, .evaluate_every = every_epoch, .save_every = every_epoch, .resume = true});
      run.trainer.set_evaluation([&] {
        const auto step = static_cast<double>(run.trainer.global_step());
        return Scalars{{"loss", best_is_last ? -step : step}};
      });
      const auto events = std::make_shared<Events>();
      events->signal_in_step = std::exchange(signal_in_step, -1);
      run.trainer.add_callback(events);
      reason = run.trainer.fit();
      if (reason == StopReason::signal) {
        EXPECT_EQ(run.trainer.global_step(), events->signal_in_step + 1);
      }
      log = events->log;
    }
    // The first epoch's evaluation is the best, or the last one's.
    const auto steps = saved_steps(folder);
    for (const CheckpointInfo& info : CheckpointFolder(std::filesystem::path(folder) / "checkpoints").all())
      log += info.metric ? "metric " : "no metric ";
    communicator.barrier().wait();
    for (const std::int64_t step : steps) log += "kept " + std::to_string(step) + ' ';
    return log;
  };
  const std::int64_t size = 11 / communicator.size() + (11 % communicator.size() > 0 ? 1 : 0);
  const std::string whole = log_of(-1, 3);
  EXPECT_TRUE(whole.ends_with("kept " + std::to_string(size) + " kept " + std::to_string(3 * size) + ' ')) << whole;
  EXPECT_EQ(log_of(size - 1, 3), whole);      // the last step of an epoch
  EXPECT_EQ(log_of(size + 1, 3), whole);      // within an epoch
  EXPECT_EQ(log_of(3 * size - 1, 3), whole);  // the last step of the run
  best_is_last = true;
  EXPECT_EQ(log_of(3 * size - 1, 3), log_of(-1, 3));
});
TEST(TrainerEpochs, AnInterruptedRunEvaluatesAndSavesAsAWholeOne) {
  interrupted.on_processes({1, 2});
}

TEST(TrainerEpochs, EarlyStoppingEndsTheRunWithTheEpoch) {
  TrainerRun run({.communicator = Communicator()}, {.max_epochs = 9, .evaluate_every = every_epoch});
  run.trainer.set_evaluation([&] { return Scalars{{"loss", 1.0}, {"accuracy", 0.1 * double(run.trainer.epoch())}}; });
  run.trainer.add_callback(std::make_shared<EarlyStopping>(EarlyStoppingOptions{.patience = 2}));
  run.trainer.add_callback(std::make_shared<EarlyStopping>(
      EarlyStoppingOptions{.metric = "eval/accuracy", .lower_is_better = false, .name = "by_accuracy"}));
  EXPECT_EQ(run.trainer.fit(), StopReason::callback);
  EXPECT_EQ(run.trainer.global_step(), 33);
}

TEST(TrainerEpochs, EachBestModelHasAFile) {
  const TemporaryFolder folder;
  TrainerRun run({.project = {.project_dir = folder.path()}, .communicator = Communicator()},
                 {.max_epochs = 1, .evaluate_every = every_epoch});
  run.trainer.set_evaluation([] { return Scalars{{"loss", 1.0}}; });
  run.trainer.add_callback(std::make_shared<BestModel>());
  run.trainer.add_callback(std::make_shared<BestModel>(BestModelOptions{.name = "second"}));
  expect_refused<UsageError>([&] { run.trainer.add_callback(std::make_shared<BestModel>()); },
                             "give one of them another name");
  run.trainer.fit();
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "best_model.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "second.safetensors"));
}

TEST(TrainerEpochs, KeepBestRefusesCheckpointsWithoutAnEvaluation) {
  const TemporaryFolder folder;
  const AcceleratorOptions best{.project = {.project_dir = folder.path(), .retention = {.keep_best = true}},
                                .communicator = Communicator()};
  const auto two = TrainerInterval::epochs(2);
  EXPECT_NO_THROW(TrainerRun(best, {.max_epochs = 1, .evaluate_every = every_epoch, .save_every = two}));
  EXPECT_NO_THROW(TrainerRun(best, {.max_epochs = 1, .evaluate_every = two}));
  EXPECT_THROW(TrainerRun(best, {.max_epochs = 1, .evaluate_every = two, .save_every = every_epoch}), UsageError);
  EXPECT_THROW(TrainerRun(best, {.max_epochs = 1, .evaluate_every = TrainerInterval::epochs(-1)}), UsageError);
  expect_refused<UsageError>(
      [&] { TrainerRun(best, {.max_epochs = 1, .evaluate_every = every_epoch, .save_every = 100}); },
      "save_every is 100 steps, and evaluate_every is 1 epochs");
}

const RankCase different_units("trainer_epochs_different_units", [](const Communicator& communicator) {
  TrainerRun run(
      {.communicator = communicator},
      {.max_steps = 2, .evaluate_every = communicator.rank() == 0 ? TrainerInterval(2) : TrainerInterval::epochs(2)});
  run.trainer.set_evaluation([] { return Scalars{{"loss", 1.0}}; });
  expect_refused<MismatchError>([&] { run.trainer.fit(); },
                                "TrainerOptions::evaluate_every.in_epochs() is 0 on rank 0 and 1 on rank 1");
});
TEST(TrainerEpochs, UnitsThatDifferBetweenRanksAreNamed) {
  different_units.on_threads({2});
}

}  // namespace
}  // namespace tutti::test::trainer_epochs_test
