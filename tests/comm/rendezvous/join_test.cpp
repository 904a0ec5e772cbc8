// Ranks that join with contradicting variables, and ranks that do not join. Ranks: 2 processes.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <string>

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

// The default of the timeout is 5 min.
TEST(Join, AbsentRanksAreLoggedLongBeforeTheTimeout) {
  RankProcesses without_rank_1(joins, 2, {.absent = {1}});
  RankProcesses without_rank_0(joins, 2, {.absent = {0}});
  EXPECT_TRUE(without_rank_1.wait_for_output(
      0, "connecting has waited for 10 s for rank 1, which has not joined. It fails after 1800 s"));
  EXPECT_TRUE(without_rank_0.wait_for_output(1, "this rank has tried for 10 s to reach the coordinator at 127.0.0.1:"));
}

}  // namespace
}  // namespace tutti::test::join_test
