#include "tutti/checkpoint/checkpoint_folder.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <limits>
#include <span>
#include <thread>

#include "checkpoint/scratch.h"
#include "checkpoint/states.h"
#include "tutti/core/error.h"
#include "tutti/detail/core/crc32c.h"

namespace tutti::test::checkpoint_folder_test {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

CheckpointInfo info(int number, std::optional<double> metric = std::nullopt) {
  return {.folder = "runs/checkpoint_" + std::to_string(number), .step = 100 - number, .metric = metric};
}

std::string removed(std::vector<CheckpointInfo> checkpoints, const RetentionOptions& options) {
  std::string names;
  for (const auto& each : removable(std::move(checkpoints), options)) {
    names += each.folder.filename().string().substr(std::string("checkpoint_").size()) + " ";
  }
  return names;
}

TEST(Removable, KeepsTheNewestByNumber) {
  const std::vector<CheckpointInfo> all = {info(10), info(2), info(9), info(1)};
  EXPECT_EQ(removed(all, {}), "");
  EXPECT_EQ(removed(all, {.keep_last = 1}), "1 2 9 ");
  EXPECT_EQ(removed(all, {.keep_last = 3}), "1 ");
  EXPECT_EQ(removed(all, {.keep_last = 4}), "");
  EXPECT_EQ(removed(all, {.keep_last = 9}), "");
  EXPECT_EQ(removed({}, {.keep_last = 1}), "");
}

TEST(Removable, KeepsTheBestToo) {
  const std::vector<CheckpointInfo> all = {info(1, 3), info(2, 1), info(3, 2), info(4), info(5, 4)};
  EXPECT_EQ(removed(all, {.keep_last = 1, .keep_best = true}), "1 3 4 ");
  EXPECT_EQ(removed(all, {.keep_last = 2, .keep_best = true, .lower_is_better = false}), "1 2 3 ");
  EXPECT_EQ(removed(all, {.keep_last = 1, .keep_best = true, .lower_is_better = false}), "1 2 3 4 ");
}

TEST(Removable, OfEqualMetricsTheOlderCheckpointIsTheBest) {
  EXPECT_EQ(removed({info(3, 1), info(2, 1), info(1, 2), info(4, 1)}, {.keep_last = 1, .keep_best = true}), "1 3 ");
}

TEST(Removable, NanIsNeverTheBest) {
  for (const bool lower : {true, false}) {
    EXPECT_EQ(removed({info(1, nan), info(2, 5), info(3, nan), info(4)},
                      {.keep_last = 1, .keep_best = true, .lower_is_better = lower}),
              "1 3 ");
  }
  EXPECT_EQ(removed({info(1, nan), info(2, nan)}, {.keep_last = 1, .keep_best = true}), "1 ");
}

TEST(Removable, RefusesToKeepNothing) {
  for (const int count : {0, -1}) EXPECT_THROW(removable({}, {.keep_last = count}), UsageError);
}

class Folder : public testing::Test {
 protected:
  void write(const std::string& name, std::optional<double> metric = std::nullopt, const std::string& run = {}) const {
    auto content = small_content(1, 0);
    content.metric = metric;
    content.run = run;
    write_checkpoint(folder_.path() / name, content, Communicator());
  }
  std::string names() const {
    std::string names;
    for (const auto& each : checkpoints_.all()) names += each.folder.filename().string() + " ";
    return names;
  }
  bool has(const std::string& name) const { return std::filesystem::exists(folder_.path() / name); }

  TemporaryFolder folder_;
  CheckpointFolder checkpoints_{folder_.path()};
};

TEST_F(Folder, CountsFromZeroAndContinues) {
  const CheckpointFolder none(folder_.path() / "none");
  EXPECT_EQ(none.next(7).filename(), "checkpoint_0_step_7");
  EXPECT_FALSE(none.newest().has_value());
  EXPECT_EQ(checkpoints_.next(0), folder_.path() / "checkpoint_0_step_0");
  write("checkpoint_9");
  write("checkpoint_10");  // the form of earlier versions
  EXPECT_EQ(checkpoints_.next(5).filename(), "checkpoint_11_step_5");
  EXPECT_EQ(checkpoints_.newest()->folder, folder_.path() / "checkpoint_10");
  write("checkpoint_11_step_5");
  EXPECT_EQ(names(), "checkpoint_9 checkpoint_10 checkpoint_11_step_5 ");
  EXPECT_EQ(checkpoints_.newest()->folder, folder_.path() / "checkpoint_11_step_5");
  EXPECT_EQ(checkpoints_.next(6).filename(), "checkpoint_12_step_6");
}

TEST_F(Folder, IncompleteCheckpointsDoNotCount) {
  write("checkpoint_3");
  write("mine");
  write("checkpoint_007");
  write("checkpoint_9_step_");
  write("checkpoint_9_step_x");
  std::filesystem::rename(folder_.path() / "mine", folder_.path() / ".checkpoint_8.partial");
  std::filesystem::create_directory(folder_.path() / "checkpoint_5");
  write_content(folder_.path() / "checkpoint_6", "");
  EXPECT_EQ(names(), "checkpoint_3 ");
  EXPECT_EQ(checkpoints_.next(1).filename(), "checkpoint_7_step_1");  // never an existing name
}

// As prune() of another job does.
TEST_F(Folder, ACheckpointThatIsRenamedWhileAllAreReadIsLeftOut) {
  write("checkpoint_0_step_0");
  write("checkpoint_1");
  std::atomic<bool> ended = false;
  const std::jthread other_job([&] {
    constexpr int times = 2000;
    for (int i = 0; i < times; ++i) {
      const std::string name = "checkpoint_0_step_";
      std::filesystem::rename(folder_.path() / (name + std::to_string(i)),
                              folder_.path() / (name + std::to_string(i + 1)));
    }
    ended = true;
  });
  while (!ended) {
    ASSERT_NO_THROW(EXPECT_EQ(checkpoints_.newest()->folder.filename(), "checkpoint_1"));
  }
}

TEST_F(Folder, ThereIsNoNumberAfterTheLargest) {
  std::filesystem::create_directory(folder_.path() / "checkpoint_9223372036854775807");
  expect_error<CheckpointError>([&] { checkpoints_.next(1); }, {folder_.path().string(), "largest number"});
}

TEST_F(Folder, ADamagedManifestIsAnErrorAndNotSkipped) {
  write("checkpoint_0");
  write("checkpoint_1");
  write_content(folder_.path() / "checkpoint_1" / "manifest.json", "{}");
  expect_error<CheckpointError>([&] { checkpoints_.newest(); }, {"checkpoint_1", "manifest.json"});
}

TEST_F(Folder, ListsFoldersNewestFirstWholeOrNot) {
  write("checkpoint_9_step_1");
  write("checkpoint_10_step_2");
  write("checkpoint_10_step_10");  // of another job
  write("checkpoint_3");
  std::filesystem::create_directory(folder_.path() / "checkpoint_11");
  write_content(folder_.path() / "checkpoint_12", "");
  write_content(folder_.path() / "checkpoint_9_step_1" / "manifest.json", "{}");
  std::string listed;
  for (const auto& folder : checkpoints_.folders()) listed += folder.filename().string() + " ";
  EXPECT_EQ(listed, "checkpoint_11 checkpoint_10_step_10 checkpoint_10_step_2 checkpoint_9_step_1 checkpoint_3 ");
}

TEST_F(Folder, PruneRemovesOldCheckpointsAndLeftovers) {
  for (int number = 0; number < 5; ++number) write("checkpoint_" + std::to_string(number), number == 1 ? 0.5 : 1.0);
  std::filesystem::create_directories(folder_.path() / ".checkpoint_7.partial" / "deep");
  std::filesystem::create_directory(folder_.path() / ".checkpoint_8.removed");
  std::filesystem::create_directory(folder_.path() / ".checkpoint_x.partial");
  std::filesystem::create_directory(folder_.path() / "notes");
  checkpoints_.prune({.keep_last = 2, .keep_best = true});
  EXPECT_EQ(names(), "checkpoint_1 checkpoint_3 checkpoint_4 ");
  EXPECT_FALSE(has(".checkpoint_7.partial") || has(".checkpoint_8.removed") || has("checkpoint_0"));
  EXPECT_TRUE(has(".checkpoint_x.partial") && has("notes"));
}

TEST_F(Folder, PruneSucceedsAfterARemovalThatWasKilled) {
  write("checkpoint_0");
  write("checkpoint_1");
  std::filesystem::create_directories(folder_.path() / ".checkpoint_0.removed" / "rest");
  checkpoints_.prune({.keep_last = 1});
  EXPECT_EQ(names(), "checkpoint_1 ");
  EXPECT_FALSE(has(".checkpoint_0.removed"));
}

TEST_F(Folder, PruneKeepsCheckpointsOfOtherRuns) {
  write("checkpoint_0", 0.1);
  write("checkpoint_1_step_4", 0.2, "first");
  write("checkpoint_2_step_8", 0.3, "first");
  for (const int number : {3, 4, 5}) {
    write("checkpoint_" + std::to_string(number) + "_step_1", 0.4, "second");
    checkpoints_.prune({.keep_last = 1, .keep_best = true}, "second");
  }
  // The best checkpoint of the second run is its first; the metrics of other runs do not count.
  EXPECT_EQ(names(), "checkpoint_0 checkpoint_1_step_4 checkpoint_2_step_8 checkpoint_3_step_1 checkpoint_5_step_1 ");
  EXPECT_EQ(checkpoints_.newest()->run, "second");
  checkpoints_.prune({.keep_last = 1});
  EXPECT_TRUE(has("checkpoint_0"));
}

TEST_F(Folder, PruneLeavesACheckpointOfAnotherFormatVersionAlone) {
  for (const char* name : {"checkpoint_0", "checkpoint_1", "checkpoint_2"}) write(name);
  const auto manifest = folder_.path() / "checkpoint_1" / "manifest.json";
  std::string rest = content_of(manifest).substr(22);  // after the checksum
  rest.replace(rest.find("\"version\": 1"), 12, "\"version\": 2");
  std::array<char, 16> crc{};
  std::snprintf(crc.data(), crc.size(), "%08x", crc32c(std::as_bytes(std::span(rest))));
  write_content(manifest, std::string("{\"crc32c\": \"") + crc.data() + "\"," + rest);
  EXPECT_NO_THROW(checkpoints_.prune({.keep_last = 1}));
  EXPECT_TRUE(has("checkpoint_1") && has("checkpoint_2") && !has("checkpoint_0"));
}

TEST_F(Folder, PruneWithoutALimitRemovesNoCheckpoint) {
  write("checkpoint_0");
  write("checkpoint_1");
  checkpoints_.prune({});
  EXPECT_EQ(names(), "checkpoint_0 checkpoint_1 ");
}

}  // namespace
}  // namespace tutti::test::checkpoint_folder_test
