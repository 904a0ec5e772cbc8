#include "train/callbacks/metric.h"

#include <limits>

#include "tutti/core/error.h"

namespace tutti {

double metric_in(const Scalars& results, const std::string& name, const std::string& callback) {
  std::string known;
  for (const auto& [key, value] : results) {
    if (key == name) return value;
    known += known.empty() ? key : ", " + key;
  }
  throw UsageError(callback + ": there is no evaluation result '" + name + "'; the results are: " + known);
}

double worst_metric(bool lower_is_better) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  return lower_is_better ? infinity : -infinity;
}

bool is_better(double value, double best, bool lower_is_better, double min_delta) {
  return lower_is_better ? value < best - min_delta : value > best + min_delta;
}

}  // namespace tutti
