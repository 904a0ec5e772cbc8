#pragma once
// Which programs a test of random programs runs.
#include <cstdint>
#include <cstdlib>
#include <string>

namespace tutti::test {

/// The programs of the seeds first .. first + count - 1.
struct Seeds {
  std::uint64_t first = 1;
  std::uint64_t count = 1;
};

/// TUTTI_SEED=n replays seed n, and TUTTI_MOVES=m runs m programs from there. Without them `count` programs from
/// seed 1.
inline Seeds seeds_to_run(std::uint64_t count) {
  const auto variable = [](const char* name, std::uint64_t otherwise) {
    const char* const text = std::getenv(name);
    return text == nullptr ? otherwise : std::stoull(text);
  };
  const bool replays = std::getenv("TUTTI_SEED") != nullptr;
  return {.first = variable("TUTTI_SEED", 1), .count = variable("TUTTI_MOVES", replays ? 1 : count)};
}

}  // namespace tutti::test
