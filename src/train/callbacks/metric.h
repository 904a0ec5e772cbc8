#pragma once
// Comparison of evaluation results in callbacks.
#include <string>

#include "tutti/tracking/tracker.h"

namespace tutti {

/// The value of `name` in `results`. If there is none, throws UsageError with `callback` and the names of the results.
double metric_in(const Scalars& results, const std::string& name, const std::string& callback);

/// A value that every finite metric is better than.
double worst_metric(bool lower_is_better);

/// True if `value` is better than `best` by more than `min_delta`. False for NaN.
bool is_better(double value, double best, bool lower_is_better, double min_delta = 0);

}  // namespace tutti
