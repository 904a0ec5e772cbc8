#pragma once
// What the launcher itself says about how an attempt ended.
#include <deque>
#include <string>

#include "launch/rank_process.h"
#include "launch/supervisor.h"
#include "tutti/launch/launch.h"

namespace tutti {

/// Who failed first, how, and its last lines, and who had left with exit code 0 before that; or which signal stopped
/// the job. Empty when all went well.
std::string describe_end(const Supervisor::Result& result, const std::deque<RankProcess>& ranks,
                         const LaunchOptions& options);

/// One line for a failure that is not the end.
std::string describe_restart(const RankProcess& failed, int restart, int max_restarts);

}  // namespace tutti
