#pragma once
// The measurements that ranks pass to the report.
#include <cstdint>
#include <string>
#include <vector>

namespace tutti::bench {

/// One cell of the table.
struct Row {
  std::string system;
  std::string mode;
  std::vector<double> milliseconds{};  ///< of a batch; one value for each repeat
  bool own_processes = false;          ///< measured in other processes, not alternating with the other rows
  std::string settings{};              ///< description of the system's settings; empty for its defaults
};

struct Results {
  std::vector<Row> rows{};
  std::int64_t gradient_bytes = 0;    ///< of one synchronization
  std::vector<std::string> faults{};  ///< wrong results, which make their figures meaningless
};

double median(std::vector<double> values);

/// Pass results between processes. They throw std::runtime_error if the file cannot be written or is not valid.
void write_results(const std::string& file, const Results& results);
Results read_results(const std::string& file);

/// Adds the figures of `more` to the rows of the same system and mode, and adds missing rows.
void merge(Results& results, const Results& more);

}  // namespace tutti::bench
