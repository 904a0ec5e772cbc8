// Random training programs on several ranks against the same on one process. A failure names its seed:
// TUTTI_SEED=n replays it, TUTTI_PROGRAMS=m runs m programs from there.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "support/rank_case.h"
#include "sync/program_run.h"
#include "sync/random_program.h"

namespace tutti::test::random_programs_test {
namespace {

std::uint64_t variable(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::stoull(text);
}

void run_program(std::uint64_t seed, const Communicator& communicator) {
  const Program program = random_program(seed, communicator.size());
  try {
    ProgramRun(program, communicator).run();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "rank " << communicator.rank() << ": " << error.what();
    throw;
  }
}

TEST(RandomPrograms, AgreeWithOneProcess) {
  const bool replays = std::getenv("TUTTI_SEED") != nullptr;
  const std::uint64_t first = variable("TUTTI_SEED", 1);
  const std::uint64_t count = variable("TUTTI_PROGRAMS", replays ? 1 : 300);
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const int ranks = 1 + static_cast<int>(seed % 4);
    try {
      run_thread_ranks(ranks, [seed](const Communicator& communicator) { run_program(seed, communicator); },
                       {.timeout = std::chrono::seconds(30)});
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    ASSERT_FALSE(HasFailure()) << "replay it with TUTTI_SEED=" << seed << " (" << ranks << " ranks as threads)\n"
                               << describe(random_program(seed, ranks));
  }
}

// Through shared memory.
const RankCase on_processes("random_programs_on_processes", [](const Communicator& communicator) {
  const std::uint64_t first = variable("TUTTI_SEED", 1);
  for (std::uint64_t seed = first; seed < first + 15; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    run_program(seed, communicator);
    if (testing::Test::HasFailure()) return;
  }
});
TEST(RandomPrograms, AgreeWithOneProcessOnProcesses) {
  on_processes.on_processes({2, 3});
}

}  // namespace
}  // namespace tutti::test::random_programs_test
