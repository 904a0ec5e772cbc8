#pragma once
// Starts the ranks of one node and supervises them: ends all ranks when one fails, and optionally restarts them.
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tutti {

/// The largest number of ranks that one launcher starts.
inline constexpr int max_ranks_per_node = 4096;

/// Options of launch(): those of the command `tutti launch`.
struct LaunchOptions {
  int ranks_per_node = 1;                 ///< processes on this node, at most max_ranks_per_node
  int num_nodes = 1;                      ///< nodes of the job, each with its own launcher
  int node_rank = 0;                      ///< number of this node, from 0
  std::string master_addr = "127.0.0.1";  ///< host name or address of node 0, which runs the coordinator
  /// MASTER_PORT. Unset: a free port (one node only). The launcher does not listen there, so a program may, as
  /// torch.distributed's rank 0 does: the coordinator has its own port. With several nodes and a master_port, the
  /// coordinator uses master_port instead, in rank 0.
  std::optional<std::uint16_t> master_port = std::nullopt;
  /// The port of the job, as the launcher of node 0 announced it. Set by launch_on_hosts().
  std::optional<std::uint16_t> coordinator_port = std::nullopt;
  /// If set, the output of each rank is also written to LOG_DIR/rank_R.log.
  std::optional<std::filesystem::path> log_dir = std::nullopt;
  /// Time between the first failure and SIGTERM, and again between SIGTERM and SIGKILL, in which the other ranks throw
  /// their own errors and exit; 5 s. Also the time between a signal to the launcher and SIGKILL, in which ranks end
  /// their step and save a checkpoint; 30 s.
  std::optional<std::chrono::milliseconds> grace = std::nullopt;
  /// How many times all ranks are restarted after one failed, as in torchrun. A program that writes checkpoints resumes
  /// from the last one. With a launcher on each node, each restarts the ranks of its node, whose errors make the others
  /// do the same: give all the same number.
  int max_restarts = 0;
  /// The restart that the ranks belong to. If set, launch() restarts none. Set by launch_on_hosts(), which does.
  std::optional<int> restart_count = std::nullopt;
  /// Node 0 without a master_port chooses both ports and prints them. Set by launch_on_hosts().
  bool announce_port = false;
  /// Treat the end of standard input as SIGTERM: the launcher on the other host has exited. Set by launch_on_hosts().
  bool end_with_stdin = false;
  /// The program and its arguments.
  std::vector<std::string> command = {};
};

/// Runs `command` as options.ranks_per_node processes with torchrun's variables, and OMP_NUM_THREADS = cores / ranks
/// unless it is set. Prefixes each line of their output with "[rank R] ".
///
/// Returns 0 if all ranks exited with 0. Otherwise prints which rank failed first and its last lines, and returns its
/// exit code (128 + signal if a signal ended it). A rank that other ranks' errors name has failed before them, though
/// it may exit after them; if it is on another node, the text says so. Stopped ranks are continued before they are
/// ended. Forwards SIGINT and SIGTERM to the ranks in the same way, and SIGHUP and SIGQUIT as SIGTERM unless they are
/// ignored (nohup). A program that leads a process group of its own, such as `timeout`, gets them too. No process that
/// it started outlives the call, except those that move to another group of their own.
///
/// With max_restarts, each attempt has its own coordinator, and TORCHELASTIC_RESTART_COUNT counts the attempts. The
/// last one determines the result. Ranks of a later attempt wait until those of the earlier one have ended, on all
/// nodes, if they connect through tutti: the store of torch.distributed does not distinguish attempts. These signals,
/// and exit codes 126 and 127 (a program that cannot be run) are not followed by a restart.
///
/// Throws UsageError for invalid options: no ranks, no such program, a port in use.
int launch(const LaunchOptions& options);

}  // namespace tutti
