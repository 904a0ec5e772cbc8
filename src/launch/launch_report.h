#pragma once
// The end of an attempt: which process failed, whether a restart may follow, and the launcher's messages.
#include <deque>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "launch/first_failure.h"
#include "launch/rank_process.h"
#include "launch/signal_events.h"
#include "launch/supervisor.h"
#include "tutti/launch/launch.h"

namespace tutti {

/// The failure of a job, with the processes themselves.
struct JobFailure {
  RankProcess* first = nullptr;                           ///< nullptr: no process failed
  std::vector<const RankProcess*> completed_before = {};  ///< in the order of their exits
  std::vector<int> named_elsewhere = {};  ///< ranks of other nodes that the last lines of `first` name as failed
  int exit_code = 0;                      ///< of the launcher
};

/// Which process failed first, by exits, last lines and flight records. Each process runs `ranks_per_process` ranks.
/// `with_failed_calls`: the ranks whose flight records hold a failed call.
JobFailure find_failure(const Supervisor::Result& result, int ranks_per_process,
                        const std::set<int>& with_failed_calls);

/// Precedes, in the report of a node, the ranks of other nodes that its failed rank's error names.
inline constexpr std::string_view names_elsewhere = "; its error names ";

/// True if a restart may help: a process failed, its program can be run, and no signal has asked the launcher to stop.
bool may_restart(const Supervisor::Result& result, const JobFailure& failure, SignalEvents& signals);

/// "tutti: stopped by SIGTERM".
std::string describe_stop(int signal);

/// The rank that failed first, its exit status and last lines, and the ranks that had exited with code 0 before. Or the
/// signal that stopped the job. Empty if all ranks succeeded.
std::string describe_end(const Supervisor::Result& result, const JobFailure& failure,
                         const std::deque<RankProcess>& ranks, const LaunchOptions& options);

/// The rank that failed first, the ranks that had exited with code 0 before, and the restart that follows.
std::string describe_restart(const JobFailure& failure, int restart, int max_restarts);

}  // namespace tutti
