#include "tutti/launch/launch.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <deque>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "coordinator/server.h"
#include "core/job_secret.h"
#include "core/launchers.h"
#include "core/socket.h"
#include "core/variables.h"
#include "launch/flight_records.h"
#include "launch/launch_report.h"
#include "launch/master_socket.h"
#include "launch/output.h"
#include "launch/program.h"
#include "launch/rank_process.h"
#include "launch/rank_variables.h"
#include "launch/remote_script.h"
#include "launch/signal_events.h"
#include "launch/stdin_watch.h"
#include "launch/supervisor.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

// Flight records refuse larger jobs.
constexpr int max_world_size = 1 << 20;
constexpr std::chrono::seconds max_grace{86'400};

void check(const LaunchOptions& options) {
  const auto text = [](int number) { return std::to_string(number); };
  if (options.command.empty()) throw UsageError("no program to start: give one after --");
  if (options.ranks_per_node > max_ranks_per_node) {
    throw UsageError("-n " + text(options.ranks_per_node) + ": a node runs at most " + text(max_ranks_per_node) +
                     " ranks");
  }
  if (options.ranks_per_node < 1) {
    throw UsageError(text(options.ranks_per_node) + " ranks cannot be started: -n must be at least 1");
  }
  if (options.num_nodes < 1) throw UsageError("--nnodes " + text(options.num_nodes) + ": it must be at least 1");
  if (options.ranks_per_node > max_world_size / options.num_nodes) {
    throw UsageError(text(options.ranks_per_node) + " ranks on each of " + text(options.num_nodes) +
                     " nodes: a job has at most " + text(max_world_size) + " ranks");
  }
  if (options.node_rank < 0 || options.node_rank >= options.num_nodes) {
    throw UsageError("--node-rank " + text(options.node_rank) + " is out of range for --nnodes " +
                     text(options.num_nodes) + ": it must be 0 to " + text(options.num_nodes - 1));
  }
  const bool has_port = options.master_port || (options.announce_port && options.node_rank == 0);
  if (options.num_nodes > 1 && (!has_port || options.master_addr.empty())) {
    throw UsageError(
        text(options.num_nodes) +
        " nodes need --master-addr (the address of node 0) and --master-port (a free port there), the same "
        "on every node");
  }
  require_no_brackets("--master-addr", options.master_addr);
  if (options.master_port == 0) throw UsageError("--master-port 0: choose a port from 1 to 65535, or none");
  if (options.grace && (options.grace->count() < 0 || *options.grace > max_grace)) {
    throw UsageError("--grace must be 0 to " + text(static_cast<int>(max_grace.count())) + " seconds");
  }
  if (options.max_restarts < 0) {
    throw UsageError("--max-restarts " + text(options.max_restarts) + ": it must be at least 0");
  }
}

void create_log_dir(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw UsageError("cannot create " + folder.string() + " (" + error.message() + "): choose another --log-dir");
  }
}

/// The same on all nodes of a job. It differs between jobs if the launcher can do so without communication.
std::string choose_run_id(const LaunchOptions& options, std::uint16_t port) {
  if (options.num_nodes > 1) return "tutti-" + options.master_addr + "-" + std::to_string(port);
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  return "tutti-" + std::to_string(::getpid()) + "-" + std::to_string(now);
}

/// The attempts to run this node's ranks, one after another. The destructor restores the signal handlers.
class Attempts {
 public:
  Attempts(const LaunchOptions& options, RankCommand command, Sink& out, Sink& err)
      : options_(options),
        command_(std::move(command)),
        out_(out),
        err_(err),
        attempt_(options.restart_count.value_or(0)) {
    command_.signal_mask = signals_.mask_before();
    if (options_.end_with_stdin) stdin_watch_.emplace();
  }

  int run() {
    for (;; ++attempt_) {
      if (const auto exit_code = run_one()) return *exit_code;
    }
  }

 private:
  /// Returns the exit code of the job; nullopt if another attempt follows.
  std::optional<int> run_one();
  BoundSocket reserve_master_port();
  /// Starts the coordinator on node 0, and the ranks. Returns false if a signal came before all were started.
  bool start_ranks(std::deque<RankProcess>& ranks, std::unique_ptr<coordinator::Server>& coordinator);

  const LaunchOptions& options_;
  RankCommand command_;
  Sink& out_;
  Sink& err_;
  SignalEvents signals_;
  std::optional<StdinWatch> stdin_watch_;
  std::string run_id_;
  std::unique_ptr<FlightRecords> records_;
  int attempt_;
};

std::optional<int> Attempts::run_one() {
  std::unique_ptr<coordinator::Server> coordinator;
  std::deque<RankProcess> ranks;
  const bool started = start_ranks(ranks, coordinator);
  const auto on_exit = [&](const RankProcess& rank) {
    if (coordinator) coordinator->process_exited(rank.rank());
  };
  const ShutdownPolicy policy(options_.grace);
  const auto result = Supervisor(ranks, signals_, {&out_, &err_}, policy, {.on_exit = on_exit}).run();
  const bool failed = result.first_failed != nullptr;
  auto failure = failed ? find_failure(result, 1, records_->ranks_with_failed_calls(attempt_)) : JobFailure{};
  if (options_.num_nodes == 1) failure.named_elsewhere.clear();  // a line of the program that only looks like an error
  const std::string records = failed ? records_->describe_failure(attempt_) : "";
  const bool has_restarts = attempt_ < options_.max_restarts && !options_.restart_count;
  if (has_restarts && may_restart(result, failure, signals_)) {
    err_.append(records + describe_restart(failure, attempt_ + 1, options_.max_restarts));
    return std::nullopt;
  }
  err_.append(describe_end(result, failure, ranks, options_) + records);
  // The ranks of other nodes may still communicate.
  while (coordinator && !failed && !coordinator->has_finished() && !signals_.has_pending()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (failed) return failure.exit_code;
  return started ? 0 : 128 + result.interrupted_by.value_or(SIGTERM);
}

bool Attempts::start_ranks(std::deque<RankProcess>& ranks, std::unique_ptr<coordinator::Server>& coordinator) {
  BoundSocket master;
  if (options_.node_rank == 0) master = reserve_master_port();
  JobVariables job;
  job.master_port = options_.node_rank == 0 ? master.port : *options_.master_port;
  job.coordinator_port = options_.coordinator_port;
  // If the user sets the port, the other nodes know only that port, which programs may want for themselves. Then rank 0
  // runs the coordinator.
  if (options_.node_rank == 0 && (options_.num_nodes == 1 || !options_.master_port)) {
    auto secret = read_job_secret(&process_variable);
    if (!secret && options_.num_nodes == 1) {
      secret = make_job_secret();
      job.secret = secret->text();
    }
    // The ranks of one node do not use MASTER_ADDR, which is for other programs.
    auto socket = listen_for_ranks(options_.num_nodes > 1 ? options_.master_addr : loopback_host, std::nullopt);
    job.coordinator_port = socket.port;
    coordinator = std::make_unique<coordinator::Server>(
        coordinator::ServerOptions{.listening = std::move(socket.fd),
                                   .secret = std::move(secret),
                                   .world_size = options_.num_nodes * options_.ranks_per_node,
                                   .linger = std::chrono::milliseconds(0)});
  }
  if (options_.announce_port && !options_.master_port) {
    out_.append(port_announcement({.master = job.master_port, .coordinator = *job.coordinator_port}));
    out_.flush();
  }
  if (run_id_.empty()) run_id_ = choose_run_id(options_, job.master_port);
  job.run_id = run_id_;
  if (!records_) records_ = std::make_unique<FlightRecords>(run_id_ + "-node" + std::to_string(options_.node_rank));
  job.record_folder = records_->folder();
  job.threads_per_rank = std::max(1, allowed_cores() / options_.ranks_per_node);
  job.restart_count = attempt_;
  const Variables inherited = current_variables();
  const std::string headline = attempt_ == 0 ? ""
                                             : "tutti: restart " + std::to_string(attempt_) + " of " +
                                                   std::to_string(options_.max_restarts) + " begins here";
  for (int local_rank = 0; local_rank < options_.ranks_per_node; ++local_rank) {
    if (signals_.has_pending()) return false;
    const int rank = options_.node_rank * options_.ranks_per_node + local_rank;
    command_.environment = environment_block(rank_variables(options_, job, local_rank, inherited));
    ranks.emplace_back(rank, command_, RankOutput(rank, options_.log_dir, headline), out_, err_);
  }
  return true;
}

/// After a restart, waits up to 10 s for the port of a killed program to become free.
BoundSocket Attempts::reserve_master_port() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(attempt_ == 0 ? 0 : 10);
  while (true) {
    try {
      return reserve_port(options_.master_port);
    } catch (const UsageError&) {
      if (std::chrono::steady_clock::now() >= deadline) throw;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace

int launch(const LaunchOptions& options) {
  check(options);
  RankCommand command;
  command.program = find_program(options.command.front());
  command.arguments.assign(options.command.begin() + 1, options.command.end());
  command.guard = find_rank_guard();
  require_descriptors("-n " + std::to_string(options.ranks_per_node), options.ranks_per_node);
  if (options.log_dir) create_log_dir(*options.log_dir);

  Sink out(STDOUT_FILENO);
  Sink err(STDERR_FILENO);
  return Attempts(options, std::move(command), out, err).run();
}

}  // namespace tutti
