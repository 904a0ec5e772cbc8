#pragma once
// The measurements of the methods, and their table.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "local_sgd/options.h"

namespace tutti::bench {

/// One training run, measured on rank 0.
struct MethodRun {
  double seconds = 0;
  double bytes = 0;           ///< sent by one rank
  double stalled = 0;         ///< seconds of waiting for others
  double loss = 0;            ///< held-out, at the end
  std::int64_t interval = 0;  ///< see Method
};

/// Statistics over the seeds.
struct Statistic {
  double mean = 0;
  double least = 0;
  double most = 0;
};

Statistic statistic(const std::vector<MethodRun>& runs, double MethodRun::*field);

std::string describe(const std::string& method, int seed, const MethodRun& run);

class MethodTable {
 public:
  void add(const std::string& method, const MethodRun& run);
  /// Prints means over the seeds with their spread, and ratios to the first method.
  std::string markdown(const LocalSGDBenchOptions& options) const;
  /// Writes a JSON array with one object for each run. Throws std::runtime_error.
  void write_json(const LocalSGDBenchOptions& options) const;
  /// Reads a file of write_json(). Throws UsageError if the file is not valid.
  static MethodTable read_json(const std::string& file);

  const std::vector<std::pair<std::string, std::vector<MethodRun>>>& rows() const { return rows_; }

 private:
  std::vector<std::pair<std::string, std::vector<MethodRun>>> rows_;
};

}  // namespace tutti::bench
