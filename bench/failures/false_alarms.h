#pragma once
// `tutti bench failures --false-alarms`: how often a rank is said to have failed that has not, and what the watch over
// ranks costs.
#include "failures/options.h"
#include "tutti/core/environment.h"

namespace tutti::bench {

/// Starts the ranks and prints a table. Returns 1 where an alarm was raised.
int count_false_alarms(const FailuresOptions& options);

/// One rank: works with the others for options.false_alarm_minutes. Meanwhile a thread of it keeps a core busy, and now
/// and then it comes late, computes for long, or is stopped for less than a second. Returns the exit code.
int run_healthy_rank(const FailuresOptions& options, const Environment& environment);

}  // namespace tutti::bench
