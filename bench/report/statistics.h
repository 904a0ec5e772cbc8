#pragma once
// Statistics over the repeats of a measurement, and their text in tables.
#include <cstdint>
#include <string>
#include <vector>

namespace tutti::bench {

struct Statistics {
  double median = 0;
  double mean = 0;
  double least = 0;
  double most = 0;
};

/// Requires at least one value.
Statistics statistics_of(std::vector<double> values);

/// Returns the smallest value that at least `percent` % of the values do not exceed. Requires at least one value.
double percentile(std::vector<double> values, double percent);

/// The number of decimals that leaves three digits.
inline constexpr int three_digits = -1;

std::string number(double value, int decimals = three_digits);

/// Returns "1.31-1.52".
std::string range(const Statistics& statistics, int decimals);

/// Returns "1.40 ×1.05 (1.31-1.52)": the median, its ratio to `base` unless that is 0, the smallest and the largest
/// value. Without values the text is empty; a single value has no range.
std::string cell(const std::vector<double>& values, int decimals = three_digits, double base = 0);

/// Returns "1 rank", "2 ranks", "2 batches".
std::string counted(std::int64_t count, const std::string& noun);

}  // namespace tutti::bench
