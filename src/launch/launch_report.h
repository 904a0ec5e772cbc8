#pragma once
// The launcher's messages about the end of an attempt.
#include <deque>
#include <string>

#include "launch/rank_process.h"
#include "launch/supervisor.h"
#include "tutti/launch/launch.h"

namespace tutti {

/// The rank that failed first, its exit status and last lines, and the ranks that had exited with code 0 before. Or the
/// signal that stopped the job. Empty if all ranks succeeded.
std::string describe_end(const Supervisor::Result& result, const std::deque<RankProcess>& ranks,
                         const LaunchOptions& options);

/// One line for a failure that is followed by a restart.
std::string describe_restart(const RankProcess& failed, int restart, int max_restarts);

}  // namespace tutti
