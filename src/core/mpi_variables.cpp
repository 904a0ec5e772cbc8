// mpirun of Open MPI and of MPICH (Hydra; Intel MPI sets the same names).
#include "core/launcher_variables.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

/// mpirun does not set the address of rank 0.
void require_master(const VariableReader& variables, const std::string& pass_on, Environment& environment) {
  const auto address = read_address(variables);
  const auto port = read_port(variables);
  if (!address || !port) {
    throw UsageError(std::string(address ? "MASTER_PORT" : "MASTER_ADDR") + " is not set, but the job has " +
                     std::to_string(environment.num_nodes) +
                     " nodes, and mpirun does not set the address of rank 0: start it with " + pass_on);
  }
  environment.master_addr = *address;
  environment.master_port = *port;
}

Environment read_mpi(const VariableReader& variables, const VariableNames& names, const std::string& launcher) {
  const auto rank_and_size = read_pair(variables, names.rank, names.size);
  Environment environment;
  environment.launcher = launcher;
  environment.rank = rank_and_size->rank;
  environment.world_size = rank_and_size->size;
  if (rank_and_size->size > 1 && !variables.has(names.local_rank) && !variables.has(names.local_size)) {
    throw UsageError(names.local_rank + " and " + names.local_size + " are not set, but " +
                     format_variable(names.size, rank_and_size->size) +
                     ": set them to this rank's number on its node and to the number of ranks there");
  }
  read_nodes(variables, names, environment);
  return environment;
}

}  // namespace

Environment read_openmpi(const VariableReader& variables) {
  const VariableNames names{
      .rank = "OMPI_COMM_WORLD_RANK",
      .size = "OMPI_COMM_WORLD_SIZE",
      .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
      .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
      .when_uneven = "start equally many ranks on each node, in order (mpirun --map-by ppr:N:node)"};
  auto environment = read_mpi(variables, names, "openmpi");
  const auto job_name = variables.first_set({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"});
  const std::string job = job_name ? variables.text(*job_name).value_or("") : "";
  if (!job.empty()) environment.job = "mpirun " + job;
  if (environment.num_nodes > 1) {
    require_master(variables, "mpirun -x MASTER_ADDR=host-of-rank-0 -x MASTER_PORT=a-free-port", environment);
  } else {
    read_master_on_one_node(variables, job, environment);
  }
  return environment;
}

Environment read_mpich(const VariableReader& variables) {
  const VariableNames names{.rank = "PMI_RANK",
                            .size = "PMI_SIZE",
                            .local_rank = "MPI_LOCALRANKID",
                            .local_size = "MPI_LOCALNRANKS",
                            .when_uneven = "start equally many ranks on each node, in order (mpirun -ppn N)"};
  auto environment = read_mpi(variables, names, "mpich");
  if (environment.num_nodes > 1) {
    require_master(variables, "mpirun -genv MASTER_ADDR host-of-rank-0 -genv MASTER_PORT a-free-port", environment);
  } else {
    read_master_on_one_node(variables, "", environment);  // Hydra does not name its job
  }
  return environment;
}

}  // namespace tutti
