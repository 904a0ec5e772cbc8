#include "core/launcher_variables.h"
#include "core/launchers.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

/// The error for ranks that do not divide evenly among the nodes.
UsageError uneven_nodes(const VariableNames& names, const std::string& known, int world_size,
                        const std::string& missing) {
  std::string text = known;
  text += " does not fit " + format_variable(names.size, world_size) + " as equal nodes of consecutive ranks: ";
  text += names.when_uneven.empty() ? "set " + missing + " too" : names.when_uneven;
  return UsageError(text);
}

std::string both(const std::string& first, int first_value, const std::string& second, int second_value) {
  return format_variable(first, first_value) + " with " + format_variable(second, second_value);
}

}  // namespace

void read_nodes(const VariableReader& variables, const VariableNames& names, Environment& environment) {
  const auto local = read_pair(variables, names.local_rank, names.local_size);
  const auto group = names.group_rank.empty() ? std::nullopt : read_pair(variables, names.group_rank, names.group_size);
  const int rank = environment.rank;
  const int world_size = environment.world_size;
  if (local && local->size > world_size) {
    throw UsageError(format_variable(names.local_size, local->size) + " is more than " +
                     format_variable(names.size, world_size) + ": a node cannot hold more ranks than the job has");
  }
  if (group && group->size > world_size) {
    throw UsageError(format_variable(names.group_size, group->size) + " is more than " +
                     format_variable(names.size, world_size) + ": every node must have a rank");
  }
  environment.num_nodes = group ? group->size : local ? world_size / local->size : 1;
  environment.local_world_size = local ? local->size : world_size / environment.num_nodes;
  environment.node_rank = group ? group->rank : rank / environment.local_world_size;
  environment.local_rank = local ? local->rank : rank % environment.local_world_size;

  if (local && group) return;  // all values were given, so nodes may be uneven
  const bool even = environment.num_nodes * environment.local_world_size == world_size &&
                    environment.node_rank * environment.local_world_size + environment.local_rank == rank;
  if (even) return;
  const std::string own = " and " + format_variable(names.rank, rank);
  if (local) {
    throw uneven_nodes(names, both(names.local_rank, local->rank, names.local_size, local->size) + own, world_size,
                       names.group_rank + " and " + names.group_size);
  }
  throw uneven_nodes(names, both(names.group_rank, group->rank, names.group_size, group->size) + own, world_size,
                     names.local_rank + " and " + names.local_size);
}

void read_master_on_one_node(const VariableReader& variables, const std::string& job, Environment& environment) {
  const auto address = read_address(variables);
  const auto port = read_port(variables);
  if (address && !port && environment.world_size > 1) {
    throw UsageError(format_variable("MASTER_ADDR", *address) +
                     " is set but MASTER_PORT is not: set both, or neither, and rank 0 chooses a port");
  }
  if (address) environment.master_addr = *address;
  if (port) environment.master_port = *port;
  if (port || environment.world_size == 1) return;
  environment.master_addr = std::string(local_coordinator_scheme) + environment.launcher;
  if (!job.empty()) environment.master_addr += "-" + job;
  environment.master_port = 0;
}

}  // namespace tutti
