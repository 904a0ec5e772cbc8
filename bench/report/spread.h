#pragma once
// Repeats of one figure as a table shows them.
#include <string>
#include <vector>

#include "report/machine.h"

namespace tutti::bench {

struct Spread {
  double median = 0;
  double least = 0;
  double most = 0;
};

/// Of at least one value.
Spread spread_of(const std::vector<double>& values);

std::string number(double value, int decimals);

/// "1 rank", "2 ranks".
std::string counted(int count, const std::string& noun);

/// The line that stands under every table.
std::string describe(const Machine& machine);

/// Throws UsageError where a table's rows could not be written to `file`. An empty name is none.
void check_json_file(const std::string& file);

/// Writes `text` to `file`. Throws std::runtime_error.
void write_file(const std::string& file, const std::string& text);

}  // namespace tutti::bench
