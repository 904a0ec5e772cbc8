// srun. https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES
#include <numeric>

#include "core/launcher_variables.h"
#include "core/slurm_nodes.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

// The step in which Slurm runs the shell of an interactive allocation.
constexpr const char* interactive_step = "4294967290";

/// The first of several names that is set and not empty, with its value.
struct Named {
  std::string name;
  std::string value;
};

std::optional<Named> find(const VariableReader& variables, const std::vector<std::string>& names) {
  for (const auto& name : names) {
    if (auto value = variables.text(name)) return Named{name, *std::move(value)};
  }
  return std::nullopt;
}

std::optional<Named> nodelist(const VariableReader& variables) {
  return find(variables, {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
}

std::optional<Named> job_id(const VariableReader& variables) {
  return find(variables, {"SLURM_JOB_ID", "SLURM_JOBID"});
}

std::optional<Named> step_id(const VariableReader& variables) {
  return find(variables, {"SLURM_STEP_ID", "SLURM_STEPID"});
}

/// Empty for a heterogeneous job, whose components have job numbers of their own.
std::string name_of_job(const VariableReader& variables) {
  const auto job = job_id(variables);
  if (!job || variables.has("SLURM_HET_SIZE")) return "";
  return "Slurm job " + job->value + ", step " + step_id(variables)->value;
}

void read_node(const VariableReader& variables, Environment& environment) {
  const auto name = variables.first_set({"SLURM_STEP_NUM_NODES", "SLURM_NNODES"});
  const auto list = nodelist(variables);
  const int node = variables.number("SLURM_NODEID").value_or(0);
  int nodes = 1;
  std::string source = "one node (SLURM_NNODES is not set)";
  if (name) {
    nodes = *variables.number(*name);
    source = format_variable(*name, nodes);
  } else if (list) {
    nodes = static_cast<int>(expand_nodelist(list->name, list->value).size());
    source = format_variable(list->name, list->value);
  }
  if (nodes < 1 || nodes > environment.world_size) {
    throw UsageError(source + " contradicts " + std::to_string(environment.world_size) +
                     " tasks: every node needs one. Start fewer nodes or more tasks");
  }
  if (node >= nodes) {
    throw UsageError(format_variable("SLURM_NODEID", node) + " is out of range for " + source);
  }
  if (nodes > 1 && !variables.has("SLURM_NODEID")) throw UsageError("SLURM_NODEID is not set, but " + source);
  environment.num_nodes = nodes;
  environment.node_rank = node;
}

/// The number of tasks on this node.
int local_size(const VariableReader& variables, const Environment& environment, const std::string& size_name) {
  if (environment.num_nodes == 1) return environment.world_size;
  const std::string name = "SLURM_STEP_TASKS_PER_NODE";
  if (const auto text = variables.text(name)) {
    const auto counts = expand_counts(name, *text);
    if (static_cast<int>(counts.size()) != environment.num_nodes ||
        std::accumulate(counts.begin(), counts.end(), std::int64_t{0}) != environment.world_size) {
      throw UsageError(format_variable(name, *text) + " does not add up to " +
                       format_variable(size_name, environment.world_size) + " on " +
                       std::to_string(environment.num_nodes) + " nodes");
    }
    return counts[static_cast<std::size_t>(environment.node_rank)];
  }
  if (environment.world_size % environment.num_nodes != 0) {
    throw UsageError(name + " is not set, and " + format_variable(size_name, environment.world_size) +
                     " cannot be shared by " + std::to_string(environment.num_nodes) +
                     " equal nodes: set it to the tasks of each node");
  }
  return environment.world_size / environment.num_nodes;
}

void read_local(const VariableReader& variables, Environment& environment, const std::string& size_name) {
  environment.local_world_size = local_size(variables, environment, size_name);
  const auto local = variables.number("SLURM_LOCALID");
  if (!local && environment.num_nodes > 1) {
    throw UsageError("SLURM_LOCALID is not set, but the job has " + std::to_string(environment.num_nodes) + " nodes");
  }
  environment.local_rank = local.value_or(environment.rank);
  if (environment.local_rank >= environment.local_world_size) {
    throw UsageError(format_variable("SLURM_LOCALID", environment.local_rank) + " is out of range for " +
                     std::to_string(environment.local_world_size) + " tasks on node " +
                     std::to_string(environment.node_rank));
  }
  if (environment.num_nodes == 1 && environment.local_rank != environment.rank) {
    throw UsageError(format_variable("SLURM_LOCALID", environment.local_rank) + " contradicts " +
                     format_variable("SLURM_PROCID", environment.rank) + ": on one node they are the same");
  }
}

/// The port that PyTorch Lightning also chooses: 15000 plus the last four digits of the job's number.
std::uint16_t port_of_job(const std::string& job) {
  int digits = 0;
  for (const char character : job) {
    if (character < '0' || character > '9') throw UsageError(format_variable("SLURM_JOB_ID", job) + " is not a number");
    digits = (digits * 10 + (character - '0')) % 10'000;
  }
  return static_cast<std::uint16_t>(15'000 + digits);
}

/// Rank 0 runs on the first node of the list.
void read_master_on_first_node(const VariableReader& variables, Environment& environment) {
  const std::string several = ", but the job has " + std::to_string(environment.num_nodes) + " nodes: ";
  if (const auto address = read_address(variables)) {
    environment.master_addr = *address;
  } else if (const auto list = nodelist(variables)) {
    environment.master_addr = expand_nodelist(list->name, list->value).front();
  } else {
    throw UsageError("SLURM_JOB_NODELIST and MASTER_ADDR are not set" + several +
                     "set MASTER_ADDR to the host of task 0");
  }
  if (const auto port = read_port(variables)) {
    environment.master_port = *port;
  } else if (const auto job = job_id(variables)) {
    environment.master_port = port_of_job(job->value);
  } else {
    throw UsageError("SLURM_JOB_ID and MASTER_PORT are not set" + several +
                     "set MASTER_PORT to a port that is free on the host of task 0");
  }
}

}  // namespace

std::string why_no_slurm_task(const VariableReader& variables) {
  const auto step = step_id(variables);
  const std::string job_name = variables.text("SLURM_JOB_NAME").value_or("");
  if (!step) return "not started by srun (SLURM_STEP_ID is not set)";
  if (step->value == interactive_step) return "the shell of an interactive allocation, not started by srun";
  if (job_name == "bash" && step->value == "0")
    return "started from the shell of `srun --pty bash`, not by an inner srun";
  return "";
}

Environment read_slurm(const VariableReader& variables) {
  const auto size_name = variables.first_set({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}).value_or("SLURM_NTASKS");
  const auto rank_and_size = read_pair(variables, "SLURM_PROCID", size_name);
  Environment environment;
  environment.launcher = "slurm";
  environment.rank = rank_and_size->rank;
  environment.world_size = rank_and_size->size;
  environment.job = name_of_job(variables);
  environment.restart_count = variables.number("SLURM_RESTART_COUNT").value_or(0);
  read_node(variables, environment);
  read_local(variables, environment, size_name);
  if (environment.num_nodes > 1) {
    read_master_on_first_node(variables, environment);
    return environment;
  }
  const auto job = job_id(variables);
  read_master_on_one_node(variables, job ? job->value + "." + step_id(variables)->value : "", environment);
  return environment;
}

}  // namespace tutti
