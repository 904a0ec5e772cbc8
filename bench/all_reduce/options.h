#pragma once
// What `tutti bench all-reduce` was asked for.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tutti::bench {

struct AllReduceOptions {
  std::vector<int> ranks{2};
  std::vector<std::int64_t> sizes{4 << 10, 64 << 10, 1 << 20, 25 << 20, 100 << 20};  ///< bytes
  std::vector<std::string> dtypes{"float32"};
  int repeats = 5;
  int milliseconds = 50;  ///< that a repeat takes at least, in as many calls as that needs
  bool mpi = true;        ///< beside an MPI, where the build found one
  std::string json;       ///< file for the rows; none when empty
  std::string results;    ///< where rank 0 leaves its rows for the process that started it; empty: it reports itself
};

/// nullopt when help was asked for (and printed). `under_launcher`: this process is a rank already, so options about
/// ranks are refused. Throws UsageError.
std::optional<AllReduceOptions> parse_all_reduce_options(const std::vector<std::string>& words, bool under_launcher);

/// The options that a rank needs to do the same work.
std::vector<std::string> work_arguments(const AllReduceOptions& options);

/// "a,b,c".
std::string joined(const std::vector<std::string>& words);
std::string joined(const std::vector<std::int64_t>& numbers);

}  // namespace tutti::bench
