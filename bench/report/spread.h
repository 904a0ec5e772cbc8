#pragma once
// Statistics over the repeats of a measurement, as tables show them.
#include <string>
#include <vector>

#include "report/machine.h"

namespace tutti::bench {

struct Spread {
  double median = 0;
  double least = 0;
  double most = 0;
};

/// Requires at least one value.
Spread spread_of(const std::vector<double>& values);

std::string number(double value, int decimals);

/// Returns "1 rank", "2 ranks".
std::string counted(int count, const std::string& noun);

/// Returns the line that describes the machine under a table.
std::string describe(const Machine& machine);

/// Throws UsageError if the rows cannot be written to `file`. Accepts an empty name.
void check_json_file(const std::string& file);

/// Writes `text` to `file`. Throws std::runtime_error.
void write_file(const std::string& file, const std::string& text);

}  // namespace tutti::bench
