// What the Trainer refuses: calls in the wrong place, and callbacks that cannot be. 1 to 3 ranks.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "optim/refused.h"
#include "support/rank_case.h"
#include "support/temporary_folder.h"
#include "train/trainer_run.h"
#include "tutti/core/error.h"
#include "tutti/train/callbacks/early_stopping.h"
#include "tutti/train/callbacks/ema.h"

namespace tutti::test::trainer_misuse_test {
namespace {

using Action = std::function<void(TrainerContext&)>;

/// Calls a function in each of its events.
struct Calls final : Callback {
  Action on_start, on_optimizer_start, on_optimizer_end, on_end, on_evaluation_end;
  static void call(const Action& action, TrainerContext& trainer) {
    if (action) action(trainer);
  }
  void on_step_start(TrainerContext& trainer) override { call(on_start, trainer); }
  void on_optimizer_step_start(TrainerContext& trainer) override { call(on_optimizer_start, trainer); }
  void on_optimizer_step_end(TrainerContext& trainer) override { call(on_optimizer_end, trainer); }
  void on_step_end(TrainerContext& trainer) override { call(on_end, trainer); }
  void on_evaluate_end(TrainerContext& trainer, const Scalars&) override { call(on_evaluation_end, trainer); }
};

void save_by_accelerator(TrainerContext& trainer) {
  trainer.accelerator().save_state();
}
void save_by_trainer(TrainerContext& trainer) {
  trainer.save_checkpoint();
}

/// Runs two steps with `calls`, and an evaluation after each.
void train(const std::shared_ptr<Calls>& calls) {
  const TemporaryFolder scratch;
  TrainerRun run(
      {.gradient_accumulation_steps = 2, .project = {.project_dir = scratch.path()}, .communicator = Communicator()},
      {.max_steps = 2, .evaluate_every = 1});
  run.trainer.set_evaluation([] { return Scalars{{"loss", 1.0}}; });
  run.trainer.add_callback(calls);
  run.trainer.fit();
}

TEST(TrainerMisuse, ACheckpointThatWouldLeaveOutABatchIsRefused) {
  for (const Action& save : {Action(save_by_accelerator), Action(save_by_trainer)}) {
    for (Action Calls::*event : {&Calls::on_start, &Calls::on_optimizer_start}) {
      const auto calls = std::make_shared<Calls>();
      (*calls).*event = save;
      expect_refused<UsageError>([&] { train(calls); }, "within a step of the Trainer");
    }
    for (Action Calls::*event : {&Calls::on_optimizer_end, &Calls::on_end}) {
      const auto calls = std::make_shared<Calls>();
      (*calls).*event = save;
      EXPECT_NO_THROW(train(calls));
    }
    const auto calls = std::make_shared<Calls>();
    calls->on_evaluation_end = save;
    expect_refused<UsageError>([&] { train(calls); }, "during an evaluation");
  }
}

TEST(TrainerMisuse, AnEvaluationInAnEvaluationIsRefused) {
  const auto calls = std::make_shared<Calls>();
  calls->on_evaluation_end = [](TrainerContext& trainer) { trainer.evaluate(); };
  expect_refused<UsageError>([&] { train(calls); }, "evaluate() during an evaluation");
}

TEST(TrainerMisuse, AnErrorInAStepLeavesTheStateSavable) {
  const TemporaryFolder scratch;
  TrainerRun run({.communicator = Communicator()}, {.max_steps = 2});
  const auto calls = std::make_shared<Calls>();
  calls->on_start = [](TrainerContext&) { throw std::runtime_error("in a step"); };
  run.trainer.add_callback(calls);
  EXPECT_THROW(run.trainer.fit(), std::runtime_error);
  EXPECT_NO_THROW(run.accelerator.save_state({.folder = scratch.path() / "state"}));
}

TEST(TrainerMisuse, CallbacksThatCannotBe) {
  TrainerRun run({.communicator = Communicator()}, {.max_steps = 1});
  EXPECT_THROW(run.trainer.add_callback(nullptr), UsageError);
  run.trainer.add_callback(std::make_shared<Ema>());
  expect_refused<UsageError>([&] { run.trainer.add_callback(std::make_shared<Ema>()); }, "have the name 'ema'");
  EXPECT_THROW(TrainerRun({.communicator = Communicator()}, {.max_steps = 1, .max_grad_norm = 0}), UsageError);
}

TEST(TrainerMisuse, TrackersAndStepsThatCannotBeAreRefused) {
  Accelerator accelerator({.communicator = Communicator()});
  EXPECT_THROW(accelerator.add_tracker(nullptr), UsageError);
  EXPECT_THROW(accelerator.init_trackers("run", {}, -5), UsageError);
  accelerator.init_trackers("run");
  EXPECT_THROW(accelerator.log({{"loss", 1.0}}, -1), UsageError);
  EXPECT_THROW(accelerator.log_text("sample", "text", (std::int64_t{1} << 53) + 1), UsageError);
}

const RankCase callbacks_of_rank_0("trainer_callbacks_of_rank_0", [](const Communicator& communicator) {
  TrainerRun run({.communicator = communicator}, {.max_steps = 2});
  if (communicator.rank() == 0) run.trainer.add_callback(std::make_shared<EarlyStopping>());
  expect_refused<MismatchError>([&] { run.trainer.fit(); },
                                "the callbacks of rank 0 are tutti::EarlyStopping, and those of rank 1 are none");
});
TEST(TrainerMisuse, CallbacksThatDifferBetweenRanksAreNamed) {
  callbacks_of_rank_0.on_threads({2, 3});
}

// The evaluation is made up for by the resumed run, so that its result is that of a checkpoint.
const RankCase best_after_a_signal("trainer_best_after_a_signal", [](const Communicator& communicator) {
  const TemporaryFolder scratch;
  const std::string folder = communicator.broadcast_object(scratch.path().string());
  const auto run_until = [&](StopReason reason) {
    TrainerRun run({.project = {.project_dir = folder, .retention = {.keep_last = 1, .keep_best = true}},
                    .communicator = communicator},
                   {.max_steps = 6, .evaluate_every = 2, .save_every = 2, .resume = true});
    run.trainer.set_evaluation([&] { return Scalars{{"loss", run.trainer.global_step() == 4 ? 1.0 : 2.0}}; });
    const auto calls = std::make_shared<Calls>();
    calls->on_optimizer_start = [&](TrainerContext& trainer) {
      if (trainer.global_step() == 2 && trainer.accelerator().is_last_process()) ::raise(SIGTERM);
    };
    run.trainer.add_callback(calls);
    EXPECT_EQ(run.trainer.fit(), reason);
  };
  run_until(StopReason::signal);
  run_until(StopReason::finished);
  std::string kept;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(folder) / "checkpoints")) {
    kept += entry.path().filename().string() + ' ';
  }
  EXPECT_NE(kept.find("step_4"), std::string::npos) << kept;
  communicator.barrier().wait();
});
TEST(TrainerMisuse, ASignalInAStepWhoseEvaluationIsDueKeepsTheBestCheckpoint) {
  best_after_a_signal.on_processes({1, 2});
}

}  // namespace
}  // namespace tutti::test::trainer_misuse_test
