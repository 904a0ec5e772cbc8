#pragma once
// One function for each launcher: from its variables to the place of this process.
#include <cstdint>
#include <string>

#include "core/variables.h"
#include "tutti/core/environment.h"

namespace tutti {

/// The names under which a launcher tells ranks and sizes.
struct VariableNames {
  std::string rank;
  std::string size;
  std::string local_rank;
  std::string local_size;
  std::string group_rank{};
  std::string group_size{};
  std::string when_uneven{};  ///< what to do where nodes cannot be told apart; empty: set the missing pair
};

/// Where the ranks of tutti meet under `tutti launch`, which leaves MASTER_PORT to other programs: "STORE,MASTER". It
/// counts while MASTER_PORT is MASTER: a launcher inside that one sets another, and has a store of its own there.
inline constexpr const char* store_port_variable = "TUTTI_MASTER_PORT";
std::string store_port_text(std::uint16_t store_port, std::uint16_t master_port);

/// Fills the place within and among nodes. What is not set follows from the rest if nodes are equal and ranks on one
/// node are consecutive, which is how launchers number them unless told otherwise. Throws UsageError.
void read_nodes(const VariableReader& variables, const VariableNames& names, Environment& environment);

/// Where the store of an MPI or Slurm job on one node is: MASTER_PORT where it is set, else a port that rank 0 chooses
/// and tells the other ranks under `job`, which may be empty where only the process tree can name the job. Throws
/// UsageError.
void read_master_on_one_node(const VariableReader& variables, const std::string& job, Environment& environment);

Environment read_torchrun(const VariableReader& variables);
Environment read_openmpi(const VariableReader& variables);
Environment read_mpich(const VariableReader& variables);
Environment read_slurm(const VariableReader& variables);

/// Why Slurm's variables, which are set, do not mean that this process is one of several tasks; empty where it is one.
std::string why_no_slurm_task(const VariableReader& variables);

}  // namespace tutti
