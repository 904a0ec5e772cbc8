#include "report/statistics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>

namespace tutti::bench {

Statistics statistics_of(std::vector<double> values) {
  std::ranges::sort(values);
  const auto middle = values.size() / 2;
  return {.median = values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2,
          .mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size()),
          .least = values.front(),
          .most = values.back()};
}

double percentile(std::vector<double> values, double percent) {
  std::ranges::sort(values);
  const double place = std::ceil(percent / 100 * static_cast<double>(values.size()));
  return values[static_cast<std::size_t>(place) - 1];
}

std::string number(double value, int decimals) {
  if (decimals == three_digits) decimals = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
  return text.data();
}

std::string range(const Statistics& statistics, int decimals) {
  return number(statistics.least, decimals) + "-" + number(statistics.most, decimals);
}

std::string cell(const std::vector<double>& values, int decimals, double base) {
  if (values.empty()) return "";
  const auto statistics = statistics_of(values);
  std::string text = number(statistics.median, decimals);
  if (base != 0) text += " ×" + number(statistics.median / base, 2);
  if (values.size() > 1) text += " (" + range(statistics, decimals) + ")";
  return text;
}

std::string counted(std::int64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : noun.ends_with("ch") ? "es" : "s");
}

}  // namespace tutti::bench
