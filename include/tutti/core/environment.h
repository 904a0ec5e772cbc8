#pragma once
// Who this process is among the ranks, read from the variables that a launcher sets.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace tutti {

/// The place of one process in a job, and where its store is. The defaults are those of a program that nobody launched:
/// one rank, no network.
struct Environment {
  int rank = 0;                           ///< 0 .. world_size-1
  int world_size = 1;                     ///< ranks in the job
  int local_rank = 0;                     ///< rank within its node
  int local_world_size = 1;               ///< ranks on this node
  int node_rank = 0;                      ///< which node this is
  int num_nodes = 1;                      ///< nodes in the job
  std::string master_addr = "127.0.0.1";  ///< or "local:NAME": the name of a store on this machine
  std::uint16_t master_port = 29500;      ///< of the store on master_addr
  /// True where the launcher's agent already serves the store: then every rank, 0 included, is a client
  /// (torchrun sets TORCHELASTIC_USE_AGENT_STORE=True).
  bool agent_store = false;
  /// A listening socket on master_port inherited from `tutti launch` (rank 0 only): no other process can take the port
  /// between choosing it and using it.
  std::optional<int> master_listen_fd = std::nullopt;
  int restart_count = 0;          ///< how often the launcher has started this job again
  std::string launcher = "none";  ///< which variables won: "torchrun", "openmpi", "mpich", "slurm", "none"

  bool operator==(const Environment&) const = default;
};

/// Looks a variable up; nullopt when it is not set. Lets tests and launchers hand in variables without setting them.
using VariableLookup = std::function<std::optional<std::string>(const std::string& name)>;

/// Reads the variables of, in this order, torchrun and `tutti launch`, Open MPI, MPICH, Slurm (docs/launching.md has
/// the table): the first launcher that says a rank or a size wins; none: one process. MPI and Slurm jobs on one node
/// need no MASTER_ADDR and MASTER_PORT; on several nodes Slurm's list of nodes gives them, and MPI needs them set.
/// Throws UsageError naming the variable when one is missing, malformed, or contradicts another.
Environment read_environment(const VariableLookup& lookup);

/// read_environment over the variables of this process.
Environment read_environment();

}  // namespace tutti
