#pragma once
// The measurements of `tutti bench all-reduce`, which ranks pass to the report.
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
  std::vector<double> microseconds{};  ///< of one call; one value for each repeat
};

struct AllReduceResults {
  std::vector<AllReduceRow> rows{};
  std::vector<std::string> notes{};   ///< lines under the table: the backend in use, what was not measured
  std::vector<std::string> faults{};  ///< wrong sums, which make their figures meaningless
};

/// Returns the row of this cell, and adds it if there is none.
AllReduceRow& row_of(AllReduceResults& results, const AllReduceRow& cell);

/// Adds the contents of `more`, each note once.
void merge(AllReduceResults& results, const AllReduceResults& more);

std::string to_text(const AllReduceResults& results);
/// Reads a `file` with the text of to_text(). Throws std::runtime_error if the file is not valid.
AllReduceResults read_all_reduce_results(const std::string& file);

}  // namespace tutti::bench
