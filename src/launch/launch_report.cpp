#include "launch/launch_report.h"

#include <csignal>

namespace tutti {
namespace {

std::string failed_after(const RankProcess& first, const std::deque<RankProcess>& ranks) {
  std::string text;
  for (const auto& rank : ranks) {
    if (&rank == &first || !rank.exit_status() || !rank.exit_status()->failed()) continue;
    text += (text.empty() ? "" : ", ") + ("rank " + std::to_string(rank.rank())) + " (" +
            rank.exit_status()->describe() + ")";
  }
  return text.empty() ? text : "tutti: failed after it: " + text + '\n';
}

/// The ranks that exited with code 0 before the failure, because an early exit makes other ranks fail. Empty if there
/// are none.
std::string describe_earlier_exits(const Supervisor::Result& result) {
  std::string ranks;
  for (const auto* rank : result.ended_before) {
    ranks += (ranks.empty() ? "rank " : ", rank ") + std::to_string(rank->rank());
  }
  return ranks.empty() ? ranks : "tutti: " + ranks + " ended first, with exit code 0, while others still ran\n";
}

}  // namespace

std::string describe_end(const Supervisor::Result& result, const std::deque<RankProcess>& ranks,
                         const LaunchOptions& options) {
  if (result.interrupted_by) {
    return std::string("tutti: stopped by ") + (*result.interrupted_by == SIGINT ? "SIGINT" : "SIGTERM") +
           "; all ranks have ended\n";
  }
  if (result.first_failed == nullptr) return "";
  auto& failed = *result.first_failed;
  const auto rank = std::to_string(failed.rank());
  const std::string left = describe_earlier_exits(result);
  std::string text = '\n' + left + "tutti: rank " + rank + (left.empty() ? " failed first: " : " failed after that: ") +
                     failed.exit_status()->describe() + '\n';
  const auto& tail = failed.output().tail();
  text += tail.empty() ? "tutti: it printed nothing\n" : "tutti: its last lines:\n";
  for (const auto& line : tail) text += "    " + line + '\n';
  if (options.log_dir) text += "tutti: full output: " + (*options.log_dir / ("rank_" + rank + ".log")).string() + '\n';
  return text + failed_after(failed, ranks);
}

std::string describe_restart(const RankProcess& failed, int restart, int max_restarts) {
  return "tutti: rank " + std::to_string(failed.rank()) + " failed first (" + failed.exit_status()->describe() +
         "): all ranks start again, restart " + std::to_string(restart) + " of " + std::to_string(max_restarts) + '\n';
}

}  // namespace tutti
