#pragma once
// Figures of `tutti bench all-reduce` on their way from the ranks to the report.
#include <cstdint>
#include <string>
#include <vector>

namespace tutti::bench {

/// One cell of the tables.
struct AllReduceRow {
  std::string system{};
  int ranks = 0;
  std::int64_t bytes = 0;
  std::string dtype{};
  std::vector<double> microseconds{};  ///< for one call, one for each repeat
};

struct AllReduceResults {
  std::vector<AllReduceRow> rows{};
  std::vector<std::string> notes{};   ///< what a reader must know: which backend carried the bytes, what was left out
  std::vector<std::string> faults{};  ///< sums that are wrong, so that their figures mean nothing
};

/// The row of this cell; added where there is none.
AllReduceRow& row_of(AllReduceResults& results, const AllReduceRow& cell);

/// Adds what `more` holds; the same note only once.
void merge(AllReduceResults& results, const AllReduceResults& more);

std::string to_text(const AllReduceResults& results);
/// Reads what to_text() wrote into `file`. Throws std::runtime_error when it is no such file.
AllReduceResults read_all_reduce_results(const std::string& file);

}  // namespace tutti::bench
