#pragma once
// The rank, world size and coordinator address of this process, read from the launcher's environment variables.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace tutti {

/// The rank of a process in its job, and the address of the coordinator. The defaults describe a program without a
/// launcher: one rank, no network.
struct Environment {
  int rank = 0;                           ///< 0 .. world_size-1
  int world_size = 1;                     ///< ranks in the job
  int local_rank = 0;                     ///< rank within its node
  int local_world_size = 1;               ///< ranks on this node
  int node_rank = 0;                      ///< number of this node, from 0
  int num_nodes = 1;                      ///< nodes in the job
  std::string master_addr = "127.0.0.1";  ///< or "local:NAME": the name of a job on this machine
  std::uint16_t master_port = 29500;      ///< port of the coordinator there
  /// True if the launcher's agent serves a c10d store at the address, in which rank 0 publishes the coordinator's
  /// (torchrun sets TORCHELASTIC_USE_AGENT_STORE=True).
  bool agent_store = false;
  /// True if `tutti launch` runs the coordinator, at which the ranks meet. Then rank 0 is a client like the others.
  bool launcher_coordinator = false;
  /// Names the job where its launcher does: "Slurm job 4711, step 0". A coordinator refuses ranks of another job.
  std::string job{};
  int restart_count = 0;          ///< number of restarts of this job by the launcher
  std::string launcher = "none";  ///< whose variables were used: "torchrun", "openmpi", "mpich", "slurm", "none"

  bool operator==(const Environment&) const = default;
};

/// Returns the value of a variable; nullopt if it is not set. Tests and launchers pass variables without setting them.
using VariableLookup = std::function<std::optional<std::string>(const std::string& name)>;

/// Reads the variables of, in this order, torchrun and `tutti launch`, Open MPI, MPICH, Slurm (table in
/// docs/launching.md). The first launcher that sets a rank or a size is used; without one, the job is one process. On
/// one node, MPI and Slurm jobs need no MASTER_ADDR and MASTER_PORT. On several nodes they follow from Slurm's list of
/// nodes; MPI jobs must set them. Throws UsageError naming the variable that is missing, malformed, or contradicts
/// another.
Environment read_environment(const VariableLookup& lookup);

/// As above, with the variables of this process.
Environment read_environment();

}  // namespace tutti
