// Random moves over two models on several ranks, compared with one process. A failure is shrunk and names its seed:
// TUTTI_SEED=n replays seed n, TUTTI_MOVES=m runs m programs from there.
#include <gtest/gtest.h>

#include <iostream>
#include <mutex>
#include <string>

#include "support/rank_case.h"
#include "support/replay.h"
#include "sync/random_moves_run.h"

namespace tutti::test::random_moves_test {
namespace {

int ranks_of(std::uint64_t seed) {
  return 1 + static_cast<int>(seed % 4);
}

struct Count {
  int completed = 0;
  int refused = 0;
};

/// Runs the program. Returns the failure; empty if the program passed.
std::string failure_of(const MoveProgram& program, Count* count = nullptr,
                       std::chrono::seconds timeout = std::chrono::seconds(30)) {
  std::mutex mutex;
  std::string failure;
  try {
    run_thread_ranks(program.ranks,
                     [&](const Communicator& communicator) {
                       MovesRun run(program, communicator);
                       const std::string wrong = run.run();
                       const std::lock_guard lock(mutex);
                       if (!wrong.empty()) failure = wrong;
                       if (count != nullptr && communicator.rank() == 0) {
                         count->completed += run.completed();
                         count->refused += run.refused();
                       }
                     },
                     {.timeout = timeout});
  } catch (const std::exception& error) {
    if (failure.empty()) failure = std::string("an exception: ") + error.what();
  }
  return failure;
}

/// All programs that lack one part of `program`.
std::vector<MoveProgram> smaller(const MoveProgram& program) {
  std::vector<MoveProgram> all;
  const auto add = [&](const auto& change) {
    all.push_back(program);
    change(all.back().iterations);
  };
  const auto& iterations = program.iterations;
  for (std::size_t i = 0; i < iterations.size(); ++i) {
    add([i](auto& its) { its.erase(its.begin() + static_cast<std::ptrdiff_t>(i)); });
  }
  for (std::size_t i = 0; i < iterations.size(); ++i) {
    for (std::size_t m = 0; m < iterations[i].size(); ++m) {
      add([i, m](auto& its) { its[i].erase(its[i].begin() + static_cast<std::ptrdiff_t>(m)); });
    }
  }
  for (std::size_t i = 0; i < iterations.size(); ++i) {
    for (std::size_t m = 0; m < iterations[i].size(); ++m) {
      const Move& move = iterations[i][m];
      if (move.twice) add([i, m](auto& its) { its[i][m].twice = false; });
      if (move.nested) add([i, m](auto& its) { its[i][m].nested = false; });
      if (move.no_sync) add([i, m](auto& its) { its[i][m].no_sync = false; });
      if (move.in_place) add([i, m](auto& its) { its[i][m].in_place = false; });
      if (!move.parts.empty()) add([i, m](auto& its) { its[i][m].parts.clear(); });
      if (move.absent >= 0) add([i, m](auto& its) { its[i][m].absent = -1; });
      if (move.explosion != Explosion::none) add([i, m](auto& its) { its[i][m].explosion = Explosion::none; });
    }
  }
  return all;
}

/// The text before the failure's first number: "a timeout", "parameter", "an error that not all ranks had", ...
std::string kind_of(const std::string& failure) {
  const auto colon = failure.find(": ");
  const std::string text = failure.starts_with("iteration ") ? failure.substr(colon + 2) : failure;
  return text.substr(0, text.find_first_of("0123456789:["));
}

/// Removes parts for at most a minute, as long as the program fails in the same way.
MoveProgram shrunk(MoveProgram program, const std::string& kind) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  for (bool smaller_one = true; smaller_one;) {
    smaller_one = false;
    for (MoveProgram& candidate : smaller(program)) {
      if (std::chrono::steady_clock::now() > end) return program;
      if (kind_of(failure_of(candidate, nullptr, std::chrono::seconds(1))) != kind) continue;
      program = std::move(candidate);
      smaller_one = true;
      break;
    }
  }
  return program;
}

void expect_right(std::uint64_t seed, Count& count) {
  const MoveProgram program = random_moves(seed, ranks_of(seed));
  const std::string failure = failure_of(program, &count);
  if (failure.empty()) return;
  std::cout << "seed " << seed << ": " << failure << "\nshrinking it\n" << std::flush;
  const MoveProgram small = shrunk(program, kind_of(failure));
  const std::string why = failure_of(small);
  FAIL() << "replay it with TUTTI_SEED=" << seed << " (" << program.ranks << " ranks as threads)\n"
         << failure << "\nwhole program:\n"
         << describe(program) << "shrunk:\n"
         << describe(small) << (why.empty() ? "(which does not always fail)" : why);
}

TEST(RandomMoves, AgreeWithOneProcessOrAreAnErrorOnAllRanks) {
  const auto [first, programs] = seeds_to_run(400);
  Count count;
  for (std::uint64_t seed = first; seed < first + programs; ++seed) {
    expect_right(seed, count);
    if (HasFailure()) return;
  }
  std::cout << programs << " programs from seed " << first << ": " << count.completed
            << " iterations as on one process, " << count.refused << " ended with an error on all ranks\n";
  if (programs >= 100) {
    EXPECT_GT(count.completed, 2 * count.refused) << "errors must be the exception";
    EXPECT_GT(count.refused, 0);
  }
}

}  // namespace
}  // namespace tutti::test::random_moves_test
