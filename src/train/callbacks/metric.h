#pragma once
// An evaluation result that callbacks compare.
#include <string>

#include "tutti/tracking/tracker.h"

namespace tutti {

/// The value of `name` in `results`. Throws UsageError that lists what there is, on behalf of `callback`.
double metric_in(const Scalars& results, const std::string& name, const std::string& callback);

/// Worse than anything.
double worst_metric(bool lower_is_better);

/// Whether `value` is better than `best` by more than `min_delta`; NaN is not.
bool is_better(double value, double best, bool lower_is_better, double min_delta = 0);

}  // namespace tutti
