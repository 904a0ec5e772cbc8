// Random training programs on several ranks, compared with one process. A failure is shrunk and names its seed:
// TUTTI_SEED=n replays seed n, TUTTI_PROGRAMS=m runs m programs from there.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "support/rank_case.h"
#include "sync/random_program.h"
#include "sync/random_program_run.h"

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

bool fails(const Program& program, std::chrono::seconds timeout) {
  testing::TestPartResultArray failures;
  const testing::ScopedFakeTestPartResultReporter reporter(
      testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &failures);
  try {
    run_thread_ranks(program.ranks,
                     [&program](const Communicator& communicator) { ProgramRun(program, communicator).run(); },
                     {.timeout = timeout});
  } catch (const std::exception&) {
    return true;
  }
  return failures.size() > 0;
}

/// Smaller programs. Parts on which later windows depend are kept, because weights and gradients may carry over.
std::vector<Program> smaller(const Program& program) {
  std::vector<Program> all;
  const auto add = [&](const auto& change) {
    Program candidate = program;
    candidate.exact = false;
    if (change(candidate)) all.push_back(std::move(candidate));
  };
  add([](Program& p) { return p.windows.size() > 1 && (p.windows.pop_back(), true); });
  for (std::size_t w = 0; w < program.windows.size(); ++w) {
    add([w](Program& p) { return std::exchange(p.windows[w].clipping, Clipping::none) != Clipping::none; });
    add([w](Program& p) { return std::exchange(p.windows[w].sync_each_batch, false); });
    for (std::size_t s = 0; s < program.windows[w].scopes.size(); ++s) {
      add([w, s](Program& p) {
        Interlude& before = p.windows[w].scopes[s].before;
        return before != Interlude::discard && std::exchange(before, Interlude::none) != Interlude::none;
      });
      for (std::size_t i = 0; i < program.windows[w].scopes[s].passes.size(); ++i) {
        const auto pass = [w, s, i](Program& p) -> ProgramPass& { return p.windows[w].scopes[s].passes[i]; };
        add([pass](Program& p) { return std::exchange(pass(p).two_losses, false); });
        add([pass](Program& p) { return std::exchange(pass(p).loss_scale, 1.0) != 1; });
        add([pass](Program& p) {
          bool changed = false;
          for (auto& uses : pass(p).uses) {
            for (Use& use : uses) changed = std::exchange(use.reach, Reach::once) != Reach::once || changed;
          }
          return changed;
        });
      }
    }
  }
  return all;
}

/// Removes parts for at most a minute, as long as the program fails.
Program shrunk(Program program) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  for (bool again = true; again;) {
    again = false;
    for (Program& candidate : smaller(program)) {
      if (std::chrono::steady_clock::now() > end) return program;
      if (!fails(candidate, std::chrono::seconds(3))) continue;
      program = std::move(candidate);
      again = true;
      break;
    }
  }
  return program;
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
                               << describe(random_program(seed, ranks)) << "shrunk:\n"
                               << describe(shrunk(random_program(seed, ranks)));
  }
}

// The processes use shared memory.
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
