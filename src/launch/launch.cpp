#include "tutti/launch/launch.h"

#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <system_error>

#include "launch/master_socket.h"
#include "launch/output.h"
#include "launch/program.h"
#include "launch/rank_process.h"
#include "launch/rank_variables.h"
#include "launch/signal_events.h"
#include "launch/supervisor.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

void check(const LaunchOptions& options) {
  const auto text = [](int number) { return std::to_string(number); };
  if (options.command.empty()) throw UsageError("no program to start: give one after --");
  if (options.ranks_per_node < 1) {
    throw UsageError(text(options.ranks_per_node) + " ranks cannot be started: -n must be at least 1");
  }
  if (options.num_nodes < 1) throw UsageError("--nnodes " + text(options.num_nodes) + ": it must be at least 1");
  if (options.ranks_per_node > std::numeric_limits<int>::max() / options.num_nodes) {
    throw UsageError(text(options.ranks_per_node) + " ranks on each of " + text(options.num_nodes) +
                     " nodes are too many: lower -n");
  }
  if (options.node_rank < 0 || options.node_rank >= options.num_nodes) {
    throw UsageError("--node-rank " + text(options.node_rank) + " is out of range for --nnodes " +
                     text(options.num_nodes) + ": it must be 0 to " + text(options.num_nodes - 1));
  }
  if (options.num_nodes > 1 && (!options.master_port || options.master_addr.empty())) {
    throw UsageError(
        text(options.num_nodes) +
        " nodes need --master-addr (the address of node 0) and --master-port (a free port there), the same "
        "on every node");
  }
  if (options.master_port == 0) throw UsageError("--master-port 0: choose a port from 1 to 65535, or none");
  if (options.grace.count() < 0) throw UsageError("--grace must not be negative");
}

void create_log_dir(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw UsageError("cannot create " + folder.string() + " (" + error.message() + "): choose another --log-dir");
  }
}

/// The same on all nodes of a job, and another for the next job where that can be had without talking to them.
std::string choose_run_id(const LaunchOptions& options, std::uint16_t port) {
  if (options.num_nodes > 1) return "tutti-" + options.master_addr + "-" + std::to_string(port);
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  return "tutti-" + std::to_string(::getpid()) + "-" + std::to_string(now);
}

std::string failed_after(const RankProcess& first, const std::deque<RankProcess>& ranks) {
  std::string text;
  for (const auto& rank : ranks) {
    if (&rank == &first || !rank.exit_status() || !rank.exit_status()->failed()) continue;
    text += (text.empty() ? "" : ", ") + ("rank " + std::to_string(rank.rank())) + " (" +
            rank.exit_status()->describe() + ")";
  }
  return text.empty() ? text : "tutti: failed after it: " + text + '\n';
}

std::string report(const Supervisor::Result& result, const std::deque<RankProcess>& ranks,
                   const LaunchOptions& options) {
  if (result.interrupted_by) {
    return std::string("tutti: stopped by ") + (*result.interrupted_by == SIGINT ? "SIGINT" : "SIGTERM") +
           "; all ranks have ended\n";
  }
  if (result.first_failed == nullptr) return "";
  auto& failed = *result.first_failed;
  const auto rank = std::to_string(failed.rank());
  std::string text = "\ntutti: rank " + rank + " failed first: " + failed.exit_status()->describe() + '\n';
  const auto& tail = failed.output().tail();
  text += tail.empty() ? "tutti: it printed nothing\n" : "tutti: its last lines:\n";
  for (const auto& line : tail) text += "    " + line + '\n';
  if (options.log_dir) text += "tutti: all of them: " + (*options.log_dir / ("rank_" + rank + ".log")).string() + '\n';
  return text + failed_after(failed, ranks);
}

/// Starts the ranks of this node and waits for them. Signals are as before when it returns.
int run_ranks(const LaunchOptions& options, RankCommand command, Sink& out, Sink& err) {
  MasterSocket master;
  if (options.node_rank == 0) master = listen_for_ranks(options.master_addr, options.master_port);
  JobVariables job;
  job.master_port = options.node_rank == 0 ? master.port : *options.master_port;
  job.run_id = choose_run_id(options, job.master_port);
  job.threads_per_rank = std::max(1, allowed_cores() / options.ranks_per_node);
  const Variables inherited = current_variables();

  SignalEvents signals;
  command.signal_mask = signals.mask_before();
  std::deque<RankProcess> ranks;
  for (int local_rank = 0; local_rank < options.ranks_per_node; ++local_rank) {
    const int rank = options.node_rank * options.ranks_per_node + local_rank;
    command.inherited_fd = rank == 0 ? std::optional(master.fd.get()) : std::nullopt;
    command.environment = environment_block(rank_variables(options, job, local_rank, command.inherited_fd, inherited));
    ranks.emplace_back(rank, command, RankOutput(rank, options.log_dir), out, err);
  }
  master.fd.reset();

  const auto result = Supervisor(ranks, signals, {&out, &err}, options.grace).run();
  err.append(report(result, ranks, options));
  return result.first_failed == nullptr ? 0 : result.first_failed->exit_status()->exit_code();
}

}  // namespace

int launch(const LaunchOptions& options) {
  check(options);
  RankCommand command;
  command.program = find_program(options.command.front());
  command.arguments.assign(options.command.begin() + 1, options.command.end());
  command.guard = find_rank_guard();
  if (options.log_dir) create_log_dir(*options.log_dir);

  Sink out(STDOUT_FILENO);
  Sink err(STDERR_FILENO);
  const int exit_code = run_ranks(options, std::move(command), out, err);
  out.flush();
  err.flush();
  return exit_code;
}

}  // namespace tutti
