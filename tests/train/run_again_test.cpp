// A project folder with an earlier run, and runs that end early.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "support/rank_case.h"
#include "train/trainer_run.h"
#include "tutti/checkpoint/checkpoint_folder.h"
#include "tutti/core/error.h"
#include "tutti/train/callbacks/early_stopping.h"

namespace tutti::test::run_again_test {
namespace {

std::vector<std::string> checkpoints_in(const std::filesystem::path& project) {
  std::vector<std::string> names;
  for (const CheckpointInfo& info : CheckpointFolder(project / "checkpoints").all()) {
    names.push_back(info.folder.filename());
  }
  return names;
}

const RankCase second_run("second_run", [](const Communicator& communicator) {
  const TemporaryFolder scratch;
  const std::filesystem::path folder = communicator.broadcast_object(scratch.path().string());
  const AcceleratorOptions options{.project = {.project_dir = folder, .retention = {.keep_last = 2}},
                                   .communicator = communicator};
  const std::vector<std::string> first_run{"checkpoint_1_step_4", "checkpoint_2_step_6"};
  {
    TrainerRun run(options, {.max_steps = 6, .save_every = 2});
    run.trainer.fit();
    EXPECT_EQ(checkpoints_in(folder), first_run);
    EXPECT_NO_THROW(run.trainer.fit());  // the same run
  }
  communicator.barrier().wait();
  {
    TrainerRun run(options, {.max_steps = 8, .save_every = 2});
    try {
      run.trainer.fit();
      ADD_FAILURE() << "wrote into the folder of another run";
    } catch (const UsageError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("checkpoint_2_step_6"), std::string::npos) << text;
      EXPECT_NE(text.find("TrainerOptions::resume"), std::string::npos) << text;
    }
    EXPECT_EQ(run.trainer.global_step(), 0);
    EXPECT_EQ(checkpoints_in(folder), first_run);
    // A second run may save in the first run's folder by hand. The checkpoints of the first run stay.
    for (int save = 0; save < 3; ++save) run.accelerator.save_state();
    auto all = first_run;
    all.insert(all.end(), {"checkpoint_4_step_0", "checkpoint_5_step_0"});
    EXPECT_EQ(checkpoints_in(folder), all);
  }
  communicator.barrier().wait();
  {
    // The run of the newest checkpoint is resumed. Only checkpoints of this run are removed.
    TrainerRun run(options, {.max_steps = 4, .save_every = 2, .resume = true});
    run.trainer.fit();
    auto all = first_run;
    all.insert(all.end(), {"checkpoint_6_step_2", "checkpoint_7_step_4"});
    EXPECT_EQ(checkpoints_in(folder), all);
  }
  communicator.barrier().wait();
});
TEST(RunAgain, ASecondRunLeavesTheFirstOnesCheckpointsAlone) {
  second_run.on_processes({1, 2});
}

TEST(RunAgain, ARunThatWasEndedEarlyStaysEnded) {
  const TemporaryFolder scratch;
  int evaluations = 0;
  const auto run = [&](int bad_evaluations) {
    TrainerRun one({.project = {.project_dir = scratch.path()}, .communicator = Communicator()},
                   {.max_steps = 20, .evaluate_every = 2, .resume = true});
    one.trainer.set_evaluation([&] {
      ++evaluations;
      return Scalars{{"loss", 1.0}};
    });
    one.trainer.add_callback(std::make_shared<EarlyStopping>(EarlyStoppingOptions{.patience = bad_evaluations}));
    const StopReason reason = one.trainer.fit();
    return std::pair(reason, one.trainer.global_step());
  };
  const auto ended = std::pair(StopReason::callback, std::int64_t{6});
  testing::internal::CaptureStderr();
  EXPECT_EQ(run(2), ended);
  const std::string ending = testing::internal::GetCapturedStderr();
  EXPECT_NE(ending.find("fit() ended at step 6 of 20: EarlyStopping: 2 evaluations without progress of eval/loss"),
            std::string::npos)
      << ending;
  EXPECT_EQ(evaluations, 3);
  testing::internal::CaptureStderr();
  EXPECT_EQ(run(2), ended);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("EarlyStopping ended this run at step 6"), std::string::npos) << said;
  EXPECT_EQ(evaluations, 3);
  EXPECT_EQ(run(3).second, 8);  // a larger value continues the run
}

TEST(RunAgain, APlateauScheduleFollowsEvaluationsAlsoWhenResumed) {
  const auto rate_after = [](const std::vector<std::int64_t>& pieces, const std::filesystem::path& folder) {
    double rate = 0;
    for (const std::int64_t until : pieces) {
      Accelerator accelerator({.project = {.project_dir = folder}, .communicator = Communicator()});
      auto loader = accelerator.data_loader(Samples{22}, {.batch_size = 2, .shuffle = true, .seed = 5});
      Noisy net(0);
      auto [model, optimizer, plateau] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.5),
                                                             PlateauOptions{.factor = 0.1, .patience = 1});
      Trainer trainer(
          accelerator, model, optimizer, plateau, loader,
          {.loss = [](Noisy& noisy, Batch& batch) { return loss_of(noisy->forward(batch.input), batch.target); }},
          quiet({.max_steps = until, .evaluate_every = 2, .resume = true}));
      trainer.set_evaluation([] { return Scalars{{"loss", 1.0}}; });
      trainer.fit();
      rate = optimizer.param_groups().front().options().get_lr();
    }
    return rate;
  };
  const TemporaryFolder whole, torn;
  EXPECT_DOUBLE_EQ(rate_after({4}, whole.path()), 0.5);  // one bad evaluation does not lower the rate
  EXPECT_DOUBLE_EQ(rate_after({6}, whole.path()), 0.05);
  EXPECT_DOUBLE_EQ(rate_after({1, 3, 4, 5, 6}, torn.path()), 0.05);
}

TEST(RunAgain, APlateauScheduleNeedsEvaluations) {
  Accelerator accelerator({.communicator = Communicator()});
  auto loader = accelerator.data_loader(Samples{22}, {.batch_size = 2});
  Noisy net(0);
  auto [model, optimizer, plateau] =
      accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.5), PlateauOptions{});
  const auto make = [&, &model = model, &optimizer = optimizer, &plateau = plateau] {
    Trainer trainer(accelerator, model, optimizer, plateau, loader,
                    {.loss = [](Noisy&, Batch& batch) { return batch.input.sum(); }}, quiet({.max_steps = 1}));
  };
  EXPECT_THROW(make(), UsageError);
}

}  // namespace
}  // namespace tutti::test::run_again_test
