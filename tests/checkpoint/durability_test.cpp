// Saves on a machine that loses power at any operation: a folder with a checkpoint's name is whole, and a save that has
// returned is on the disk. 2 ranks.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "checkpoint/folder_names.h"
#include "checkpoint/prune.h"
#include "checkpoint/scratch.h"
#include "checkpoint/states.h"
#include "checkpoint/test_files.h"
#include "checkpoint/write_checkpoint.h"
#include "tutti/comm/thread_ranks.h"
#include "tutti/core/error.h"

namespace tutti::test::durability_test {
namespace {

using Call = TestFiles::Call;
using Forgets = std::function<bool(const std::filesystem::path&)>;

constexpr int ranks = 2;

// Returns false if the save failed.
bool save(const std::filesystem::path& folder, int step, const TestFiles& files) {
  bool saved = true;
  run_thread_ranks(ranks, [&](const Communicator& communicator) {
    try {
      checkpoint::write_checkpoint(folder, small_content(step, communicator.rank()), communicator, files);
    } catch (const CheckpointError&) {
      if (communicator.rank() == 0) saved = false;
    }
  });
  return saved;
}

bool is_whole(const std::filesystem::path& folder) {
  try {
    const Checkpoint read = read_checkpoint(folder);
    bool whole = static_cast<bool>(same(read.shared, small_content(read.info.step, 0).shared));
    for (int rank = 0; rank < read.info.world_size; ++rank) {
      const StateDict& of_rank = read.per_rank.at(static_cast<std::size_t>(rank));
      whole = whole && same(of_rank, small_content(read.info.step, rank).per_rank);
    }
    return whole;
  } catch (const CheckpointError&) {
    return false;
  }
}

struct Faults {
  int damaged = 0;     // folders with a checkpoint's name that are not whole
  int lost = 0;        // saves that returned and are not there
  int unfinished = 0;  // stops that left a hidden name
  int stops = 0;
};

// Stops the machine at each operation of a save and a prune, in turn.
Faults faults_with(const Forgets& forgets, bool renames_are_lost) {
  Faults faults;
  for (std::size_t stop = 0;; ++stop) {
    const TemporaryFolder scratch;
    const CheckpointFolder checkpoints(scratch.path() / "checkpoints");
    write_checkpoint(checkpoints.next(0), small_content(0, 0), Communicator());  // checkpoint_0_step_0
    TestFiles files;
    files.stop_at(stop);
    files.forget_syncs(forgets);
    const auto folder = checkpoints.path() / "checkpoint_1_step_1";
    const bool returned = save(folder, 1, files);
    if (returned) {
      try {
        checkpoint::prune(checkpoints, {.keep_last = 1}, "", files);
      } catch (const CheckpointError&) {
        // The machine has stopped.
      }
    }
    files.lose_power(renames_are_lost);
    for (const auto& each : checkpoints.folders()) {
      if (!is_whole(each)) ++faults.damaged;
    }
    if (returned && !std::filesystem::exists(folder)) ++faults.lost;
    for (const auto& entry : std::filesystem::directory_iterator(checkpoints.path())) {
      if (!checkpoint::is_leftover(entry.path())) continue;
      ++faults.unfinished;
      break;
    }
    if (!files.has_stopped()) break;
    ++faults.stops;
    // The next job saves, and removes what the stopped one left.
    const auto next = checkpoints.next(2);
    write_checkpoint(next, small_content(2, 0), Communicator());
    checkpoints.prune({});
    for (const auto& entry : std::filesystem::directory_iterator(checkpoints.path())) {
      EXPECT_TRUE(checkpoint::checkpoint_number(entry.path())) << entry.path();
    }
  }
  return faults;
}

TEST(Durability, APowerLossAtAnyOperationLeavesOnlyWholeCheckpoints) {
  for (const bool renames_are_lost : {false, true}) {
    const Faults faults = faults_with({}, renames_are_lost);
    EXPECT_EQ(faults.damaged, 0);
    EXPECT_EQ(faults.lost, 0);
    EXPECT_GT(faults.stops, 30);
    EXPECT_GT(faults.unfinished, 10);
  }
}

// Each sync is needed: the test above fails without it.
TEST(Durability, AMissingSyncIsNoticed) {
  const auto ends_with = [](const std::string& suffix) {
    return [suffix](const std::filesystem::path& path) { return path.string().ends_with(suffix); };
  };
  EXPECT_GT(faults_with(ends_with(".safetensors"), false).damaged, 0);
  EXPECT_GT(faults_with(ends_with("rank_1.json"), false).damaged, 0);
  EXPECT_GT(faults_with(ends_with("state.json"), false).damaged, 0);
  EXPECT_GT(faults_with(ends_with("manifest.json"), false).damaged, 0);
  EXPECT_GT(faults_with(ends_with(".partial"), false).damaged, 0);
  EXPECT_GT(faults_with(ends_with("checkpoints"), true).lost, 0);
}

// Position of the last event for which `is` holds; -1 if there is none.
template <typename Is>
std::ptrdiff_t last(const std::vector<TestFiles::Event>& events, Is is) {
  std::ptrdiff_t position = -1;
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (is(events[i])) position = static_cast<std::ptrdiff_t>(i);
  }
  return position;
}

TEST(Durability, FilesAreSyncedBeforeTheManifestAndAllBeforeTheRename) {
  const TemporaryFolder scratch;
  const auto folder = scratch.path() / "checkpoint_0";
  const TestFiles files;
  ASSERT_TRUE(save(folder, 0, files));
  const auto events = files.events();
  const auto rename = last(events, [&](const auto& event) { return event.to == folder; });
  ASSERT_GE(rename, 0);
  const auto partial = events[static_cast<std::size_t>(rename)].path;
  const auto last_of = [&](Call call, const std::filesystem::path& path) {
    return last(events, [&](const auto& event) { return event.call == call && event.path == path; });
  };
  const auto manifest = last_of(Call::create, partial / "manifest.json");
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto path = partial / entry.path().filename();
    SCOPED_TRACE(path);
    ++count;
    EXPECT_GE(last_of(Call::write, path), 0);
    EXPECT_LT(last_of(Call::write, path), last_of(Call::sync, path));
    EXPECT_LT(last_of(Call::sync, path), last_of(Call::sync, partial));
    if (path.filename() != "manifest.json") {
      EXPECT_LT(last_of(Call::sync, path), manifest);
    }
  }
  EXPECT_EQ(count, 8);
  EXPECT_LT(last_of(Call::sync, partial), rename);
  EXPECT_LT(rename, last_of(Call::sync, scratch.path()));
}

}  // namespace
}  // namespace tutti::test::durability_test
