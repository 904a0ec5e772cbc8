// Ranks that join with contradicting variables, and ranks that do not join. Ranks: 2 processes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/socket.h"
#include "support/ranks.h"
#include "tutti/comm/communicator.h"
#include "tutti/core/error.h"

namespace tutti::test::join_test {
namespace {

using namespace std::chrono_literals;

constexpr const char* rank_of_three = "RANK_OF_THREE";

// One rank believes that there are three ranks. No rank waits for the third one.
const RankProgram different_sizes("join_different_sizes", [] {
  Environment environment = read_environment();
  if (environment.rank == std::atoi(std::getenv(rank_of_three))) {
    environment.world_size = 3;
    environment.local_world_size = 3;
  }
  try {
    (void)Communicator::connect(environment, {.connect_timeout = 30min});  // longer than the time limit of the test
    ADD_FAILURE() << "no error";
  } catch (const UsageError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("WORLD_SIZE"), std::string::npos) << text;
  }
});

TEST(Join, DifferentWorldSizesAreAnErrorOnAllRanks) {
  for (const char* rank : {"0", "1"}) {
    expect_success(run_processes(different_sizes, 2, {.variables = {{rank_of_three, rank}}}));
  }
}

const RankProgram joins("join_joins",
                        [] { (void)Communicator::connect(read_environment(), {.connect_timeout = 30min}); });

const RankProgram joins_with_the_longest_timeouts("join_joins_with_the_longest_timeouts", [] {
  constexpr auto longest = std::chrono::milliseconds::max();
  const auto communicator = Communicator::connect(
      read_environment(),
      {.timeout = longest, .connect_timeout = longest, .heartbeat_timeout = longest, .deadlock_timeout = longest});
  communicator.barrier().wait();
});

TEST(Join, TimeoutsMayBeTheLongestThereAre) {
  expect_success(run_processes(joins_with_the_longest_timeouts, 2));
  expect_success(run_processes(joins_with_the_longest_timeouts, 2, {.num_nodes = 2}));
}

// The default of the timeout is 5 min.
TEST(Join, AbsentRanksAreLoggedLongBeforeTheTimeout) {
  RankProcesses without_rank_1(joins, 2, {.absent = {1}});
  RankProcesses without_rank_0(joins, 2, {.absent = {0}});
  EXPECT_TRUE(without_rank_1.wait_for_output(
      0, "connecting has waited for 10 s for rank 1, which has not joined. It fails after 1800 s"));
  EXPECT_TRUE(without_rank_0.wait_for_output(1, "this rank has tried for 10 s to reach the coordinator at 127.0.0.1:"));
  EXPECT_TRUE(without_rank_0.wait_for_output(1, "(Connection refused)"));
}

// Rank 0 tries again and again to listen at a port that is in use.
const RankProgram finds_its_port_in_use("join_finds_its_port_in_use", [] {
  ::unsetenv("TUTTI_JOB_SECRET");  // NOLINT(concurrency-mt-unsafe)
  const auto held = listen_tcp("127.0.0.1");
  Environment environment{.rank = 0, .world_size = 2, .num_nodes = 2};
  environment.master_port = static_cast<std::uint16_t>(held.address.port);
  try {
    (void)Communicator::connect(environment, {.connect_timeout = 500ms});
    ADD_FAILURE() << "no error";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("is in use"), std::string::npos) << error.what();
  }
});

TEST(Join, WarnsOnceThatTheJobHasNoSecret) {
  const auto results = run_processes(finds_its_port_in_use, 1);
  expect_success(results);
  const auto& output = results.front().output;
  const auto first = output.find("this job has no secret");
  EXPECT_NE(first, std::string::npos) << output;
  EXPECT_EQ(output.find("this job has no secret", first + 1), std::string::npos) << output;
}

// The ranks that are left connect without rank 2. Rank 0 runs the coordinator of both jobs.
const RankProgram connects_after_a_failure("join_connects_after_a_failure", [] {
  auto environment = read_environment();
  try {
    const auto communicator = Communicator::connect(environment);
    communicator.barrier().wait();
    if (environment.rank == 2) ::_exit(0);
    communicator.barrier().wait();
    ADD_FAILURE() << "no error";
  } catch (const PeerError&) {
  }
  environment.world_size = 2;
  environment.local_world_size = 2;
  for (;;) {
    try {
      Communicator::connect(environment).barrier().wait();
      return;
    } catch (const PeerError&) {  // the coordinator has not told this rank or the other one yet that rank 2 has exited
    }
  }
});

TEST(Join, RanksConnectAgainAfterAFailure) {
  expect_success(run_processes(connects_after_a_failure, 3));
}

}  // namespace
}  // namespace tutti::test::join_test
