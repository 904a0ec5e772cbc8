#pragma once
// Starts the ranks of one node, watches them, ends them all when one fails, and starts them all again if asked to.
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tutti {

/// What `tutti launch` is told.
struct LaunchOptions {
  int ranks_per_node = 1;                 ///< processes on this node
  int num_nodes = 1;                      ///< nodes of the job, each with a launcher of its own
  int node_rank = 0;                      ///< which of them this is
  std::string master_addr = "127.0.0.1";  ///< node 0, where the ranks meet: a name or an address
  /// MASTER_PORT. Unset: a free one (one node only). Nobody listens there yet: a program may, torch.distributed's rank
  /// 0 does. Ranks of tutti meet at a port of their own, which the launcher holds for rank 0; where several nodes are
  /// given a master_port they know no other, and meet there.
  std::optional<std::uint16_t> master_port = std::nullopt;
  /// The port that node 0 holds for tutti, as its launcher announced it; for launch_on_hosts.
  std::optional<std::uint16_t> store_port = std::nullopt;
  /// When set, what each rank prints also goes to LOG_DIR/rank_R.log.
  std::optional<std::filesystem::path> log_dir = std::nullopt;
  /// Between a first failure and SIGTERM, and again between SIGTERM and SIGKILL: time for the other ranks to throw
  /// their own named errors and to leave.
  std::chrono::milliseconds grace = std::chrono::seconds(5);
  /// How often all ranks are started again after one failed, as torchrun does it: a program that keeps checkpoints goes
  /// on from the last one. One node only.
  int max_restarts = 0;
  /// Node 0 of several without a master_port chooses both ports and prints them, for launch_on_hosts.
  bool announce_port = false;
  /// The end of standard input counts as SIGTERM: the launcher that started this one on another host is gone.
  bool end_with_stdin = false;
  /// The program and its arguments.
  std::vector<std::string> command = {};
};

/// Runs `command` as options.ranks_per_node processes with torchrun's variables, OMP_NUM_THREADS = cores / ranks unless
/// it is set, and each line of their output behind "[rank R] ". Returns 0 when all ranks ended with 0, else the exit
/// code of the rank that failed first (128 + signal when a signal ended it), after printing which one it was and its
/// last lines. Ranks that a signal has stopped are woken then. SIGINT and SIGTERM are passed on to the ranks in the
/// same way. Nothing that it started outlives it. With max_restarts, each attempt has a store of its own and
/// TORCHELASTIC_RESTART_COUNT counts them; the last one decides what is returned. No attempt follows SIGINT, SIGTERM,
/// or exit code 126 or 127 (a program that cannot be run). Throws UsageError for options that cannot be honoured (no
/// ranks, a program that is not there, a port in use, restarts with several nodes).
int launch(const LaunchOptions& options);

}  // namespace tutti
