#pragma once
// One function for each launcher: from its variables to the Environment of this process.
#include <cstdint>
#include <string>

#include "core/variables.h"
#include "tutti/core/environment.h"

namespace tutti {

/// The names of a launcher's variables for ranks and sizes.
struct VariableNames {
  std::string rank;
  std::string size;
  std::string local_rank;
  std::string local_size;
  std::string group_rank{};
  std::string group_size{};
  std::string when_uneven{};  ///< advice for nodes of unequal size; empty: set the missing pair of variables
};

/// The port of tutti's store under `tutti launch`, which leaves MASTER_PORT to other programs: "STORE,MASTER". It is
/// valid only while MASTER_PORT equals MASTER: a nested launcher sets another MASTER_PORT and has its own store there.
inline constexpr const char* coordinator_port_variable = "TUTTI_MASTER_PORT";
std::string coordinator_port_text(std::uint16_t coordinator_port, std::uint16_t master_port);

/// Fills local rank, local world size, node rank and number of nodes. Derives missing values under the assumption that
/// nodes have equally many ranks, numbered consecutively, as launchers do by default. Throws UsageError.
void read_nodes(const VariableReader& variables, const VariableNames& names, Environment& environment);

/// Sets the store of an MPI or Slurm job on one node: MASTER_PORT if it is set, else a port that rank 0 chooses and
/// publishes under the name `job`. `job` may be empty; then the process tree identifies the job. Throws UsageError.
void read_master_on_one_node(const VariableReader& variables, const std::string& job, Environment& environment);

Environment read_torchrun(const VariableReader& variables);
Environment read_openmpi(const VariableReader& variables);
Environment read_mpich(const VariableReader& variables);
Environment read_slurm(const VariableReader& variables);

/// The reason why Slurm's variables are ignored although they are set; empty if this process is a task of srun.
std::string why_no_slurm_task(const VariableReader& variables);

}  // namespace tutti
