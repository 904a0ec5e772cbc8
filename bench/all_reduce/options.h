#pragma once
// The options of `tutti bench all-reduce`.
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
  int milliseconds = 50;  ///< least duration of a repeat of one or more calls
  bool mpi = true;        ///< also measure MPI, if the build found it
  std::string json;       ///< file for the rows; empty: none
  std::string results;    ///< file in which rank 0 writes its rows for the parent process; empty: it reports
};

/// Returns nullopt after --help. `under_launcher`: this process is a rank, so options about ranks are refused. Throws
/// UsageError.
std::optional<AllReduceOptions> parse_all_reduce_options(const std::vector<std::string>& words, bool under_launcher);

/// Returns the arguments with which a rank does the same work.
std::vector<std::string> work_arguments(const AllReduceOptions& options);

/// "a,b,c".
std::string joined(const std::vector<std::string>& words);
std::string joined(const std::vector<std::int64_t>& numbers);

}  // namespace tutti::bench
