#include "launch/launch_report.h"

#include <signal.h>
#include <string.h>

#include <algorithm>
#include <utility>

#include "core/describe.h"

namespace tutti {
namespace {

// The exit codes of shells and tutti-rank for a program that cannot be run, and for one that does not exist.
constexpr int cannot_run = 126;
constexpr int not_found = 127;

/// The last line that names failed ranks.
NamedFailure named_failure_of(const std::deque<std::string>& lines) {
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    if (auto named = named_failure_in(*line); !named.ranks.empty()) return named;
  }
  return {};
}

ProcessEnd end_of(RankProcess& process, int ranks_per_process, const std::set<int>& with_failed_calls) {
  ProcessEnd end{.process = static_cast<std::size_t>(process.rank()), .was_stopped = process.was_stopped()};
  if (process.exit_status()->failed()) {
    end.state = process.ended_by_launcher() ? ProcessEnd::State::ended_by_launcher : ProcessEnd::State::failed;
  }
  end.has_failed_call = with_failed_calls.contains(process.rank());
  const NamedFailure named = named_failure_of(process.output().tail());
  end.peers_were_late = named.timed_out;
  for (const int rank : named.ranks) {
    const int peer = rank / ranks_per_process;
    if (peer != process.rank()) end.failed_peers.push_back(static_cast<std::size_t>(peer));
  }
  // A process that names only itself explains its failed call.
  if (!named.ranks.empty() && end.failed_peers.empty()) end.has_failed_call = false;
  return end;
}

std::string describe_status(const RankProcess& rank) {
  const std::string status = rank.exit_status()->describe();
  if (rank.was_stopped()) return "it was stopped (SIGSTOP or Ctrl+Z), then " + status;
  return rank.ended_by_launcher() ? "it had left the job and had not exited when tutti ended it, " + status : status;
}

/// The end of a job that a signal to the launcher stopped.
std::string describe_interruption(int signal, const std::deque<RankProcess>& ranks) {
  std::vector<int> killed;
  for (const auto& rank : ranks) {
    if (rank.ended_by_launcher() && rank.exit_status()->signal == SIGKILL) killed.push_back(rank.rank());
  }
  const std::string how = killed.empty() ? "all ranks have ended"
                                         : describe_ranks(killed) +
                                               " did not end and had to be killed: --grace "
                                               "sets how long ranks may take";
  return describe_stop(signal) + "; " + how + "\n";
}

std::string failed_after(const RankProcess& first, const std::deque<RankProcess>& ranks) {
  std::vector<std::pair<std::string, std::vector<int>>> by_status;
  for (const auto& rank : ranks) {
    if (&rank == &first || !rank.exit_status() || !rank.exit_status()->failed()) continue;
    const std::string status = rank.exit_status()->describe() + (rank.ended_by_launcher() ? ", ended by tutti" : "");
    auto same = std::ranges::find(by_status, status, [](const auto& entry) { return entry.first; });
    if (same == by_status.end()) same = by_status.insert(by_status.end(), {status, {}});
    same->second.push_back(rank.rank());
  }
  std::string text;
  for (const auto& [status, numbers] : by_status) {
    text += (text.empty() ? "" : ", ") + describe_ranks(numbers) + " (" + status + ")";
  }
  return text.empty() ? text : "tutti: failed after it: " + text + '\n';
}

/// The ranks that exited with code 0 before the failure, because an early exit makes other ranks fail. Empty if there
/// are none.
std::string describe_earlier_exits(const JobFailure& failure) {
  std::vector<int> ranks;
  for (const auto* rank : failure.completed_before) ranks.push_back(rank->rank());
  std::ranges::sort(ranks);
  if (ranks.empty()) return "";
  return "tutti: " + describe_ranks(ranks) + " ended first, with exit code 0, while others still ran\n";
}

/// "rank 3 failed first", behind describe_earlier_exits().
std::string describe_order(const JobFailure& failure) {
  const std::string rank = "rank " + std::to_string(failure.first->rank());
  if (!failure.completed_before.empty()) return rank + " failed after that";
  return rank + (failure.named_elsewhere.empty() ? " failed first" : " failed");
}

/// The exit status of the rank that failed first. If its error names ranks of other nodes, these may have failed
/// before.
std::string describe_cause(const JobFailure& failure) {
  const auto& elsewhere = failure.named_elsewhere;
  const std::string status = describe_status(*failure.first);
  if (elsewhere.empty()) return status;
  return status + std::string(names_elsewhere) + describe_ranks(elsewhere) +
         (elsewhere.size() == 1 ? ", which is" : ", which are") + " on another node";
}

/// The last lines of `failed`. A line that other ranks printed too is shown with all of them.
std::string last_lines(RankProcess& failed, const std::deque<RankProcess>& ranks) {
  std::string text;
  for (const auto& line : failed.output().tail()) {
    std::vector<int> printed_by;
    for (const auto& rank : ranks) {
      const auto& tail = rank.output().tail();
      if (std::ranges::find(tail, line) != tail.end()) printed_by.push_back(rank.rank());
    }
    text += "    " + (printed_by.size() > 1 ? '[' + describe_ranks(printed_by) + "] " : "") + line + '\n';
  }
  return text;
}

}  // namespace

JobFailure find_failure(const Supervisor::Result& result, int ranks_per_process,
                        const std::set<int>& with_failed_calls) {
  if (result.first_failed == nullptr) return {};
  if (result.interrupted_by)
    return {.first = result.first_failed, .exit_code = result.first_failed->exit_status()->exit_code()};
  std::vector<ProcessEnd> ends;
  for (auto* process : result.exits) ends.push_back(end_of(*process, ranks_per_process, with_failed_calls));
  const auto process_of = [&](std::size_t number) {
    return *std::ranges::find(result.exits, static_cast<int>(number), &RankProcess::rank);
  };
  const FirstFailure found = find_first_failure(ends);
  JobFailure failure{.first = process_of(found.process)};
  const bool ended_by_launcher = failure.first->ended_by_launcher() && !failure.first->was_stopped();
  failure.exit_code = (ended_by_launcher ? result.first_failed : failure.first)->exit_status()->exit_code();
  for (const std::size_t process : found.completed_before) failure.completed_before.push_back(process_of(process));
  for (const std::size_t process : found.named_elsewhere) failure.named_elsewhere.push_back(static_cast<int>(process));
  return failure;
}

bool may_restart(const Supervisor::Result& result, const JobFailure& failure, SignalEvents& signals) {
  if (failure.first == nullptr) return false;
  const auto& status = *failure.first->exit_status();
  const bool can_run = status.signal != 0 || (status.code != cannot_run && status.code != not_found);
  return can_run && !result.stop_requested && signals.take().empty();
}

std::string describe_stop(int signal) {
  return std::string("tutti: stopped by SIG") + ::sigabbrev_np(signal);
}

std::string describe_end(const Supervisor::Result& result, const JobFailure& failure,
                         const std::deque<RankProcess>& ranks, const LaunchOptions& options) {
  if (result.interrupted_by) return describe_interruption(*result.interrupted_by, ranks);
  if (failure.first == nullptr) return "";
  auto& failed = *failure.first;
  const auto rank = std::to_string(failed.rank());
  std::string text = '\n' + describe_earlier_exits(failure) + "tutti: " + describe_order(failure) + ": " +
                     describe_cause(failure) + '\n';
  const std::string lines = last_lines(failed, ranks);
  text += lines.empty() ? "tutti: it printed nothing\n" : "tutti: its last lines:\n" + lines;
  if (options.log_dir) text += "tutti: full output: " + (*options.log_dir / ("rank_" + rank + ".log")).string() + '\n';
  return text + failed_after(failed, ranks);
}

std::string describe_restart(const JobFailure& failure, int restart, int max_restarts) {
  return describe_earlier_exits(failure) + "tutti: " + describe_order(failure) + " (" + describe_cause(failure) +
         "): all ranks start again, restart " + std::to_string(restart) + " of " + std::to_string(max_restarts) + '\n';
}

}  // namespace tutti
