#pragma once
// `tutti bench failures --false-alarms`: counts failure reports of ranks that have not failed, and measures the CPU
// time of heartbeats.
#include "failures/options.h"
#include "tutti/core/environment.h"

namespace tutti::bench {

/// Starts the ranks and prints a table. Returns 1 if a rank was reported as failed.
int count_false_alarms(const FailuresOptions& options);

/// One rank: works with the others for options.false_alarm_minutes while one of its threads keeps a core busy. At
/// random it is late, computes for 15 s, or is stopped for less than a second. Returns the exit code.
int run_healthy_rank(const FailuresOptions& options, const Environment& environment);

}  // namespace tutti::bench
