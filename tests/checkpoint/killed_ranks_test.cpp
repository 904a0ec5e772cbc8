// Checkpoints of 3 processes: the process cases of this folder, and ranks that exit or are stopped during a save.
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <iostream>

#include "checkpoint/folder_names.h"
#include "checkpoint/scratch.h"
#include "checkpoint/states.h"
#include "support/process_case.h"
#include "support/ranks.h"
#include "tutti/checkpoint/checkpoint_folder.h"
#include "tutti/core/error.h"

namespace tutti::test::killed_ranks_test {
namespace {

TEST(OnProcesses, EveryCaseOfCheckpointHolds) {
  run_process_cases();
}

constexpr const char* folder_variable = "TUTTI_TEST_FOLDER";
constexpr const char* signal_variable = "TUTTI_TEST_SIGNAL";

/// The kernel sends SIGXFSZ in a write beyond the limit. So `signal` reaches this rank there, with half of a file on
/// the disk.
void raise_in_a_write(int signal) {
  static int what = 0;
  what = signal;
  std::signal(SIGXFSZ, [](int) {
    const rlimit none{RLIM_INFINITY, RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &none);
    std::raise(what);
  });
  rlimit limit{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  limit.rlim_cur = 1 << 16;
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

const RankProgram struck_in_a_save("struck_in_a_save", [] {
  const auto communicator =
      Communicator::connect(read_environment(), {.backend = "tcp", .timeout = std::chrono::seconds(10)});
  const std::filesystem::path folder = std::getenv(folder_variable);
  auto content = small_content(1, communicator.rank());
  write_checkpoint(folder / "checkpoint_0", content, communicator);
  content.per_rank.set("large", at::zeros({1 << 20}));
  if (communicator.rank() == 1) raise_in_a_write(std::atoi(std::getenv(signal_variable)));
  try {
    write_checkpoint(folder / "checkpoint_1", content, communicator);
    std::cout << "written" << std::endl;
  } catch (const TimeoutError& error) {
    std::cout << "TimeoutError: " << error.what() << std::endl;
  } catch (const PeerError& error) {
    std::cout << "PeerError: " << error.what() << std::endl;
  }
});

bool has_partial(const std::filesystem::path& folder, const std::string& name) {
  const std::filesystem::directory_iterator entries(folder);
  return std::any_of(begin(entries), end(entries), [&](const auto& entry) {
    return checkpoint::folder_of_hidden(entry.path()) == folder / name && entry.path().extension() == ".partial";
  });
}

/// The first checkpoint is complete, the second does not exist, and the next save removes its files.
void expect_only_the_first(const std::filesystem::path& folder) {
  const CheckpointFolder checkpoints(folder);
  ASSERT_EQ(checkpoints.all().size(), 1U);
  EXPECT_NO_THROW(read_checkpoint(folder / "checkpoint_0"));
  EXPECT_TRUE(has_partial(folder, "checkpoint_1"));
  write_checkpoint(folder / "checkpoint_1", small_content(1, 0), Communicator());
  EXPECT_NO_THROW(read_checkpoint(folder / "checkpoint_1"));
  EXPECT_FALSE(has_partial(folder, "checkpoint_1"));
}

TEST(FailureDuringSave, AnExitedRankIsNamedAndLeavesNoCheckpoint) {
  const TemporaryFolder folder;
  const auto results = run_processes(
      struck_in_a_save, 3,
      {.variables = {{folder_variable, folder.path().string()}, {signal_variable, std::to_string(SIGKILL)}}});
  EXPECT_EQ(results[1].signal, SIGKILL);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(results[rank].exit_code, 0) << results[rank].output;
    EXPECT_NE(results[rank].output.find("PeerError: "), std::string::npos) << results[rank].output;
    EXPECT_NE(results[rank].output.find("checkpoint: write"), std::string::npos) << results[rank].output;
    EXPECT_NE(results[rank].output.find("rank 1"), std::string::npos) << results[rank].output;
  }
  expect_only_the_first(folder.path());
}

bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// The rank is stopped until the others have timed out, and then continues. It must not report a checkpoint.
TEST(FailureDuringSave, AStoppedRankIsNamedAndGetsAnErrorWhenItContinues) {
  const TemporaryFolder folder;
  RankProcesses ranks(
      struck_in_a_save, 3,
      {.variables = {{folder_variable, folder.path().string()}, {signal_variable, std::to_string(SIGSTOP)}}});
  for (const int rank : {0, 2}) ASSERT_TRUE(ranks.wait_for_output(rank, "TimeoutError: "));
  ranks.send_signal(1, SIGCONT);
  const auto results = ranks.wait();
  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_EQ(result.output.find("written"), std::string::npos) << result.output;
  }
  for (const int rank : {0, 2}) {
    // Shared memory or the coordinator finds it first.
    EXPECT_TRUE(has(results[rank].output, "rank 1 did not enter the call") ||
                has(results[rank].output, "rank 1 has been stopped for"))
        << results[rank].output;
  }
  // Rank 0 may have exited by then, and the coordinator with it; or the clock of rank 1 tells that it was stopped.
  const std::string& told = results[1].output;
  EXPECT_TRUE(has(told, "timed out waiting for this rank (1)") ||
              has(told, "rank 0, which runs the coordinator, exited") || has(told, "or this process was stopped"))
      << told;
  expect_only_the_first(folder.path());
}

}  // namespace
}  // namespace tutti::test::killed_ranks_test
