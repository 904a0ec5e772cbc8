// Saves that are killed by SIGKILL, at each of their operations: every folder with a checkpoint's name is complete.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "checkpoint/folder_names.h"
#include "checkpoint/prune.h"
#include "checkpoint/scratch.h"
#include "checkpoint/states.h"
#include "checkpoint/test_files.h"
#include "checkpoint/write_checkpoint.h"
#include "support/ranks.h"
#include "tutti/checkpoint/checkpoint_folder.h"
#include "tutti/core/environment.h"

namespace tutti::test::kill_test {
namespace {

constexpr const char* folder_variable = "TUTTI_TEST_FOLDER";
constexpr const char* operation_variable = "TUTTI_TEST_OPERATION";
constexpr int torn_saves = 5;  // minimum number of kills during a save

// Saves and prunes, and is killed at an operation.
const RankProgram saver("checkpoint_saver", [] {
  const CheckpointFolder checkpoints(std::getenv(folder_variable));
  int left = std::atoi(std::getenv(operation_variable));
  const TestFiles files([&](const TestFiles::Event&) {
    if (left-- == 0) std::raise(SIGKILL);
    return 0;
  });
  checkpoint::write_checkpoint(checkpoints.next(2), small_content(2, 0), Communicator(), files);
  checkpoint::prune(checkpoints, {.keep_last = 1}, "", files);
});

// Reads every folder with a checkpoint's name. Returns their number.
int verify(const std::filesystem::path& folder) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!checkpoint::checkpoint_number(entry.path())) continue;
    ++count;
    try {
      const auto read = read_checkpoint(entry.path());
      EXPECT_TRUE(same(read.shared, small_content(read.info.step, 0).shared));
      EXPECT_TRUE(same(read.per_rank.at(0), small_content(read.info.step, 0).per_rank));
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
  return count;
}

TEST(Kill, NoOperationOfASaveLeavesAPartialCheckpoint) {
  int kills = 0;
  int torn = 0;
  for (bool killed = true; killed && !testing::Test::HasFailure();) {
    const TemporaryFolder folder;
    const CheckpointFolder checkpoints(folder.path());
    write_checkpoint(checkpoints.next(1), small_content(1, 0), Communicator());
    const auto result = run_processes(
        saver, 1,
        {.variables = {{folder_variable, folder.path().string()}, {operation_variable, std::to_string(kills)}}});
    killed = result.at(0).signal == SIGKILL;
    EXPECT_TRUE(killed || result.at(0).exit_code == 0) << result.at(0).output;
    kills += killed ? 1 : 0;
    const std::filesystem::directory_iterator left(folder.path());
    torn +=
        std::any_of(begin(left), end(left), [](const auto& entry) { return checkpoint::is_leftover(entry.path()); });

    const int complete = verify(folder.path());
    EXPECT_EQ(static_cast<std::size_t>(complete), checkpoints.all().size());
    EXPECT_FALSE(std::filesystem::exists(checkpoints.next(0)));
    EXPECT_GE(complete, 1);  // once a checkpoint exists, one always exists
    // The kernel has released the lock of the killed process.
    checkpoints.prune({.keep_last = 1});
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), std::filesystem::directory_iterator()),
              1);
  }
  RecordProperty("kills", kills);
  RecordProperty("torn", torn);
  EXPECT_GE(torn, torn_saves);
  std::printf("%d kills, %d of them left something half done\n", kills, torn);
}

}  // namespace
}  // namespace tutti::test::kill_test
