#pragma once
// Figures on their way from the ranks to the report.
#include <cstdint>
#include <string>
#include <vector>

namespace tutti::bench {

/// One cell of the table.
struct Row {
  std::string system;
  std::string mode;
  std::vector<double> milliseconds{};  ///< per batch, one for each repeat
  bool own_processes = false;          ///< taken in other processes than the rest, not in turn with it
  std::string settings{};              ///< what the system runs with, in words; empty for its defaults
};

struct Results {
  std::vector<Row> rows{};
  std::int64_t gradient_bytes = 0;    ///< that one synchronization is about
  std::vector<std::string> faults{};  ///< results that are wrong, so that their figures mean nothing
};

double median(std::vector<double> values);

/// Between processes. They throw std::runtime_error when the file cannot be written, or is not such a file.
void write_results(const std::string& file, const Results& results);
Results read_results(const std::string& file);

/// Adds the figures of `more` to the rows of the same system and mode, and the rows that were not there.
void merge(Results& results, const Results& more);

}  // namespace tutti::bench
