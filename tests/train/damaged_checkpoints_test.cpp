// load_latest_state() with damaged checkpoints: all ranks load the newest whole one and say what they skipped.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "optim/refused.h"
#include "support/rank_case.h"
#include "train/trainer_run.h"
#include "tutti/checkpoint/checkpoint_folder.h"
#include "tutti/core/error.h"
#include "tutti/detail/sync/reducer.h"

namespace tutti::test::damaged_checkpoints_test {
namespace {

namespace fs = std::filesystem;

void flip_last_byte(const fs::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const int byte = file.get();
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(byte ^ 1));
}

struct SgdRun {
  explicit SgdRun(const Communicator& communicator, const fs::path& folder, std::optional<int> keep_last = std::nullopt)
      : accelerator(
            {.project = {.project_dir = folder, .retention = {.keep_last = keep_last}}, .communicator = communicator}),
        optimizer(std::get<1>(accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1)))) {}
  void step(std::int64_t index) {
    accelerator.backward(loss_of(net->forward(batch_of(index).input), batch_of(index).target));
    optimizer.step();
    optimizer.zero_grad();
  }
  Accelerator accelerator;
  Mlp net;
  Optimizer optimizer;
};

constexpr int saves = 4;

/// The folders of checkpoints after 1, 2, ... steps, oldest first.
std::vector<fs::path> saved_by(const Communicator& communicator, const fs::path& folder) {
  std::vector<fs::path> folders;
  SgdRun run(communicator, folder);
  for (int i = 0; i < saves; ++i) {
    run.step(i);
    folders.push_back(run.accelerator.save_state());
  }
  return folders;
}

const RankCase falls_back("damaged_falls_back", [](const Communicator& communicator) {
  const TemporaryFolder mine;
  const fs::path folder = communicator.broadcast_object(mine.path().string());
  const auto saved = saved_by(communicator, folder);
  const int last = communicator.size() - 1;
  if (communicator.rank() == 0) {
    // Only the last rank reads this file.
    flip_last_byte(saved[3] / ("rank_" + std::to_string(last) + ".json"));
    std::ofstream(saved[2] / "manifest.json") << "{}";
    fs::remove(saved[1] / "model.safetensors");
    fs::create_directory(folder / "checkpoints" / "checkpoint_9_step_9");
  }
  communicator.barrier().wait();
  {
    SgdRun run(communicator, folder, 1);
    const auto info = run.accelerator.load_latest_state();
    ASSERT_TRUE(info.has_value());
    EXPECT_EQ(info->step, 1);
    EXPECT_EQ(run.optimizer.reducer()->steps(), 1);
    // Training goes on: names continue, and retention leaves alone what it cannot read.
    run.step(1);
    EXPECT_EQ(run.accelerator.save_state().filename(), "checkpoint_10_step_2");
    EXPECT_TRUE(fs::exists(saved[2]));
    EXPECT_FALSE(fs::exists(saved[0]));
  }
  communicator.barrier().wait();
});
TEST(DamagedCheckpoints, AllRanksLoadTheNewestWholeOne) {
  falls_back.on_processes({1, 2, 3});
}

TEST(DamagedCheckpoints, WhatIsSkippedIsSaid) {
  const TemporaryFolder scratch;
  const auto saved = saved_by(Communicator(), scratch.path());
  flip_last_byte(saved[3] / "model.safetensors");
  fs::resize_file(saved[2] / "manifest.json", std::uintmax_t{3} << 30);
  SgdRun run(Communicator(), scratch.path());
  testing::internal::CaptureStderr();
  EXPECT_EQ(run.accelerator.load_latest_state()->step, 2);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("skips the checkpoint checkpoint_3_step_4: "), std::string::npos) << log;
  EXPECT_NE(log.find("model.safetensors is damaged"), std::string::npos) << log;
  EXPECT_NE(log.find("skips the checkpoint checkpoint_2_step_3: "), std::string::npos) << log;
  EXPECT_NE(log.find("the limit is"), std::string::npos) << log;
}

TEST(DamagedCheckpoints, WithoutAWholeOneIsAnError) {
  const TemporaryFolder scratch;
  for (const fs::path& folder : saved_by(Communicator(), scratch.path())) flip_last_byte(folder / "state.json");
  SgdRun run(Communicator(), scratch.path());
  expect_refused([&] { run.accelerator.load_latest_state(); }, "no checkpoint in ");
}

TEST(DamagedCheckpoints, FoldersWithoutAManifestAreNoCheckpoints) {
  const TemporaryFolder scratch;
  fs::create_directories(scratch.path() / "checkpoints" / "checkpoint_5");
  SgdRun run(Communicator(), scratch.path());
  EXPECT_FALSE(run.accelerator.load_latest_state());
}

TEST(DamagedCheckpoints, ACheckpointThatDoesNotFitIsNotSkipped) {
  const TemporaryFolder scratch;
  saved_by(Communicator(), scratch.path());
  Accelerator accelerator({.project = {.project_dir = scratch.path()}, .communicator = Communicator()});
  Mlp net;
  accelerator.prepare(net);
  expect_refused([&] { accelerator.load_latest_state(); }, "holds 'optimizer'");
}

TEST(DamagedCheckpoints, ATrainerResumesBeforeADamagedOne) {
  const TemporaryFolder scratch;
  const AcceleratorOptions options{.project = {.project_dir = scratch.path()}, .communicator = Communicator()};
  {
    TrainerRun run(options, {.max_steps = 6, .save_every = 2});
    run.trainer.fit();
  }
  const auto newest = CheckpointFolder(scratch.path() / "checkpoints").folders().front();
  std::ofstream(newest / "manifest.json") << "{}";
  {
    TrainerRun other(options, {.max_steps = 8, .save_every = 2});
    expect_refused<UsageError>([&] { other.trainer.fit(); }, "checkpoint_1_step_4 belongs to another run");
  }
  TrainerRun run(options, {.max_steps = 8, .save_every = 2, .resume = true});
  EXPECT_EQ(run.trainer.fit(), StopReason::finished);
  EXPECT_EQ(run.trainer.global_step(), 8);
}

}  // namespace
}  // namespace tutti::test::damaged_checkpoints_test
