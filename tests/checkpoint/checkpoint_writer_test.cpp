#include "tutti/detail/checkpoint/checkpoint_writer.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

#include "checkpoint/scratch.h"
#include "checkpoint/states.h"
#include "checkpoint/test_files.h"
#include "support/process_case.h"
#include "support/ranks.h"
#include "tutti/checkpoint/safetensors.h"
#include "tutti/core/error.h"

namespace tutti::test::checkpoint_writer_test {
namespace {

const ProcessCase snapshot("checkpoint writer: what stood there",
                           [](const Communicator& communicator, const std::filesystem::path& folder) {
                             CheckpointWriter writer(communicator.duplicate("checkpoints"));
                             auto content = small_content(7, communicator.rank());
                             writer.start(folder / "checkpoint_0", content, {});
                             content.shared["model"].get<at::Tensor>("weight").fill_(-1);
                             content.per_rank.get<at::Tensor>("generator").fill_(0);
                             writer.wait();
                             const auto read = read_checkpoint(folder / "checkpoint_0");
                             EXPECT_TRUE(same(read.shared, small_content(7, 0).shared));
                             EXPECT_TRUE(same(read.per_rank.at(1), small_content(7, 1).per_rank));
                           });
TEST(CheckpointWriter, WritesTheValuesFromTheStart) {
  snapshot.on_threads({2});
}

TEST(CheckpointWriter, PrunesAfterEachSave) {
  const TemporaryFolder folder;
  const CheckpointFolder checkpoints(folder.path());
  CheckpointWriter writer{Communicator()};
  for (int save = 0; save < 4; ++save) {
    writer.start(folder.path() / ("checkpoint_" + std::to_string(save)), small_content(save, 0), {.keep_last = 2});
  }
  writer.wait();
  writer.wait();  // returns at once
  ASSERT_EQ(checkpoints.all().size(), 2U);
  EXPECT_EQ(checkpoints.all()[0].step, 2);
  EXPECT_EQ(checkpoints.newest()->step, 3);
}

TEST(CheckpointWriter, ErrorsAreThrownOnceByWaitOrTheNextStart) {
  const TemporaryFolder folder;
  write_content(folder.path() / "checkpoint_0", "in the way");
  CheckpointWriter writer{Communicator()};
  writer.start(folder.path() / "checkpoint_0", small_content(0, 0), {});
  expect_error<UsageError>([&] { writer.wait(); }, {"checkpoint_0", "already"});
  EXPECT_NO_THROW(writer.wait());
  writer.start(folder.path() / "checkpoint_0", small_content(0, 0), {});
  expect_error<UsageError>([&] { writer.start(folder.path() / "checkpoint_1", small_content(1, 0), {}); },
                           {"checkpoint_0"});
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "checkpoint_1"));
  writer.start(folder.path() / "checkpoint_1", small_content(1, 0), {});
  writer.wait();
  EXPECT_EQ(CheckpointFolder(folder.path()).newest()->step, 1);
}

// A copy that fails on one rank, for example because memory is full.
const ProcessCase failed_copy("checkpoint writer: a copy that fails", [](const Communicator& communicator,
                                                                         const std::filesystem::path& folder) {
  CheckpointWriter writer(communicator.duplicate("checkpoints"));
  auto content = small_content(1, communicator.rank());
  if (communicator.rank() == 1) content.per_rank.set("no memory", at::empty({2}, at::kMeta));
  expect_error<CheckpointError>([&] { writer.start(folder / "checkpoint_1", content, {}); }, {"rank 1: "});
  writer.start(folder / "checkpoint_2", small_content(2, communicator.rank()), {});
  writer.wait();
  EXPECT_NO_THROW(read_checkpoint(folder / "checkpoint_2"));
});
TEST(CheckpointWriter, ACopyThatFailsOnOneRankIsAnErrorOnAllRanks) {
  failed_copy.on_threads({2});
}

const ProcessCase only_rank_0("checkpoint writer: shared parts", [](const Communicator& communicator,
                                                                    const std::filesystem::path& folder) {
  CheckpointWriter writer(communicator.duplicate("checkpoints"));
  auto content = small_content(1, communicator.rank());
  // A copy would fail.
  if (communicator.rank() != 0) content.shared["model"].set("weight", at::empty({2}, at::kMeta));
  writer.start(folder / "checkpoint_1", content, {});
  writer.wait();
  EXPECT_TRUE(same(read_checkpoint(folder / "checkpoint_1").shared, small_content(1, 0).shared));
});
TEST(CheckpointWriter, OnlyRank0CopiesSharedParts) {
  only_rank_0.on_threads({2});
}

const ProcessCase no_pruning("checkpoint writer: a failure to prune", [](const Communicator& communicator,
                                                                         const std::filesystem::path& folder) {
  write_checkpoint(folder / "checkpoint_0", small_content(0, communicator.rank()), communicator);
  const TestFiles files([&](const TestFiles::Event& event) {
    return event.path.filename() == "checkpoint_0" ? EIO : 0;  // when it is renamed
  });
  CheckpointWriter writer(communicator.duplicate("checkpoints"), &files);
  writer.start(folder / "checkpoint_1", small_content(1, communicator.rank()), {.keep_last = 1});
  expect_error<CheckpointError>([&] { writer.wait(); }, {"checkpoint_1 is written", "checkpoint_0"});
  EXPECT_NO_THROW(read_checkpoint(folder / "checkpoint_1"));
});
TEST(CheckpointWriter, AFailureToPruneReachesAllRanks) {
  no_pruning.on_threads({2});
}

// Such as a folder that a process of another user left when it exited. 1 rank.
TEST(CheckpointWriter, ALeftoverThatCannotBeRemovedFailsNoSave) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path() / ".checkpoint_7.removed" / "rest");
  const TestFiles files([](const TestFiles::Event& event) {
    const bool inside = event.path.parent_path().filename().string().starts_with(".checkpoint_7.");
    return event.call == TestFiles::Call::remove && inside ? EACCES : 0;
  });
  CheckpointWriter writer(Communicator(), &files);
  for (int save = 0; save < 3; ++save) {
    writer.start(folder.path() / ("checkpoint_" + std::to_string(save)), small_content(save, 0), {.keep_last = 1});
    EXPECT_NO_THROW(writer.wait());
  }
  EXPECT_EQ(CheckpointFolder(folder.path()).all().size(), 1U);
}

// A damaged checkpoint must not end the runs that skip it. 1 rank.
TEST(CheckpointWriter, RetentionLeavesACheckpointWithADamagedManifestAlone) {
  const TemporaryFolder folder;
  for (const char* name : {"checkpoint_0", "checkpoint_1"}) {
    write_checkpoint(folder.path() / name, small_content(0, 0), Communicator());
  }
  write_content(folder.path() / "checkpoint_1" / "manifest.json", "{}");
  CheckpointWriter writer{Communicator()};
  writer.start(folder.path() / "checkpoint_2", small_content(2, 0), {.keep_last = 1});
  EXPECT_NO_THROW(writer.wait());
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "checkpoint_1"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "checkpoint_0"));
}

TEST(CheckpointWriter, RefusesInvalidOptionsInStart) {
  CheckpointWriter writer{Communicator()};
  EXPECT_THROW(writer.start("never", {}, {.keep_last = 0}), UsageError);
  EXPECT_FALSE(std::filesystem::exists("never"));
}

TEST(CheckpointWriter, TheDestructorWaitsAndLogsTheError) {
  const TemporaryFolder folder;
  {
    CheckpointWriter writer{Communicator()};
    writer.start(folder.path() / "checkpoint_0", small_content(0, 0), {});
  }
  EXPECT_NO_THROW(read_checkpoint(folder.path() / "checkpoint_0"));
  testing::internal::CaptureStderr();
  {
    CheckpointWriter writer{Communicator()};
    writer.start(folder.path() / "checkpoint_0", small_content(0, 0), {});
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("checkpoint_0 already exists"), std::string::npos) << log;
}

TEST(CheckpointWriter, ASparseTensorIsRefusedByName) {
  const TemporaryFolder folder;
  CheckpointContent content;
  content.shared["model"].set("w", at::ones({2, 2}).to_sparse());
  CheckpointWriter writer{Communicator()};
  writer.start(folder.path() / "checkpoint_0", content, {});
  expect_error<UsageError>([&] { writer.wait(); }, {"'w'", "not dense"});
}

constexpr const char* exit_folder = "TUTTI_TEST_EXIT_FOLDER";
std::atomic<bool> is_exiting = false;

// The files are written while the process exits.
const RankProgram exits_while_it_writes("checkpoint_exits_while_it_writes", [] {
  const TestFiles files([](const TestFiles::Event&) {
    is_exiting.wait(false);
    return 0;
  });
  const Communicator communicator = Communicator::connect(read_environment());
  CheckpointWriter writer(communicator.duplicate("checkpoints"), &files);
  writer.start(std::getenv(exit_folder), small_content(3, communicator.rank()), {});
  std::atexit([] {
    is_exiting = true;
    is_exiting.notify_all();
  });
  std::exit(0);  // destroys no local object
});
TEST(CheckpointWriter, AProcessExitsAfterTheSave) {
  const TemporaryFolder folder;
  const auto saved = folder.path() / "checkpoint_0";
  const auto results = run_processes(exits_while_it_writes, 2, {.variables = {{exit_folder, saved.string()}}});
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(read_checkpoint(saved).info.step, 3);
}

TEST(CheckpointWriter, TiedTensorsAreWrittenOnce) {
  const TemporaryFolder folder;
  CheckpointContent content;
  const auto tensor = at::arange(6, at::kFloat);
  content.shared["model"].set("a", tensor);
  content.shared["model"].set("b", tensor);
  CheckpointWriter writer{Communicator()};
  writer.start(folder.path() / "checkpoint_0", content, {});
  writer.wait();
  EXPECT_EQ(load_safetensors(folder.path() / "checkpoint_0" / "model.safetensors").tensors.size(), 1U);
  EXPECT_TRUE(same(read_checkpoint(folder.path() / "checkpoint_0").shared, content.shared));
}

}  // namespace
}  // namespace tutti::test::checkpoint_writer_test
