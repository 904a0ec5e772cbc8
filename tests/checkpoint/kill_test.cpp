// Saves that are killed by SIGKILL at any time: every folder with a checkpoint's name is complete.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "checkpoint/folder_names.h"
#include "checkpoint/scratch.h"
#include "checkpoint/states.h"
#include "support/ranks.h"
#include "tutti/checkpoint/checkpoint_folder.h"
#include "tutti/core/environment.h"

namespace tutti::test::kill_test {
namespace {

constexpr const char* folder_variable = "TUTTI_TEST_FOLDER";
constexpr int saves = 200;
constexpr int torn_saves = 5;  // minimum number of kills during a save

// Saves and prunes until it is killed.
const RankProgram saver("checkpoint_saver", [] {
  const CheckpointFolder checkpoints(std::getenv(folder_variable));
  const Communicator alone;
  for (int save = 1; save <= saves; ++save) {
    std::printf("save %d.\n", save);
    std::fflush(stdout);
    write_checkpoint(checkpoints.next(save), small_content(save, 0), alone);
    checkpoints.prune({.keep_last = 3});
  }
});

// Keeps the processor busy for `time`.
void pass(std::chrono::microseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) {
  }
}

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

TEST(Kill, NoneOfTwoHundredSavesLeavesAPartialCheckpoint) {
  const TemporaryFolder folder;
  const CheckpointFolder checkpoints(folder.path());
  std::mt19937 random(20240229);
  int attempted = 0;
  int kills = 0;
  int torn = 0;
  bool saved_before = false;
  while ((attempted < saves || torn < torn_saves) && !testing::Test::HasFailure()) {
    RankProcesses process(saver, 1, {.variables = {{folder_variable, folder.path().string()}}});
    const int last = std::uniform_int_distribution(1, 16)(random);
    ASSERT_TRUE(process.wait_for_output(0, "save " + std::to_string(last) + "."));
    pass(std::chrono::microseconds(std::uniform_int_distribution(0, 20'000)(random)));
    process.send_signal(0, SIGKILL);
    EXPECT_EQ(process.wait().at(0).signal, SIGKILL);
    attempted += last;
    ++kills;
    const std::filesystem::directory_iterator left(folder.path());
    torn +=
        std::any_of(begin(left), end(left), [](const auto& entry) { return checkpoint::is_leftover(entry.path()); });

    const int complete = verify(folder.path());
    EXPECT_EQ(static_cast<std::size_t>(complete), checkpoints.all().size());
    EXPECT_FALSE(std::filesystem::exists(checkpoints.next(0)));
    // Once a checkpoint exists, one always exists.
    saved_before = saved_before || last > 1;
    EXPECT_GE(complete, saved_before ? 1 : 0);
  }
  RecordProperty("kills", kills);
  RecordProperty("torn", torn);
  std::printf("%d saves, %d kills, %d of them left something half done\n", attempted, kills, torn);
  checkpoints.prune({.keep_last = 1});
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), std::filesystem::directory_iterator()),
            1);
}

}  // namespace
}  // namespace tutti::test::kill_test
