// Random training programs of an Accelerator on several ranks, compared with one process: parts of a model that step
// between passes of one forward, parameters that join later, buffers, complex parameters. TUTTI_SEED=n replays seed n,
// TUTTI_MOVES=m runs m programs from there.
#include <gtest/gtest.h>

#include <iostream>
#include <mutex>
#include <string>

#include "support/rank_case.h"
#include "support/replay.h"
#include "train/accelerator_moves_run.h"

namespace tutti::test::accelerator_moves_test {
namespace {

TEST(RandomMoves, OfAnAcceleratorAgreeWithOneProcessOrAreAnErrorOnAllRanks) {
  const auto [first, programs] = seeds_to_run(60);
  std::mutex mutex;
  int completed = 0;
  int refused = 0;
  for (std::uint64_t seed = first; seed < first + programs; ++seed) {
    const TrainingProgram program = random_training(seed, 1 + static_cast<int>(seed % 3));
    std::string failure;
    try {
      run_thread_ranks(program.ranks,
                       [&](const Communicator& communicator) {
                         TrainingRun run(program, communicator);
                         const std::string wrong = run.run();
                         const std::lock_guard lock(mutex);
                         if (!wrong.empty()) failure = wrong;
                         if (communicator.rank() != 0) return;
                         completed += run.completed();
                         refused += run.refused();
                       },
                       {.timeout = std::chrono::seconds(30)});
    } catch (const std::exception& error) {
      if (failure.empty()) failure = std::string("an exception: ") + error.what();
    }
    ASSERT_EQ(failure, "") << "replay it with TUTTI_SEED=" << seed << " (ranks as threads)\n" << describe(program);
  }
  std::cout << programs << " programs from seed " << first << ": " << completed << " iterations as on one process, "
            << refused << " ended with an error on all ranks\n";
}

}  // namespace
}  // namespace tutti::test::accelerator_moves_test
