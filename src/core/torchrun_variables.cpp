// torchrun and `tutti launch`.
#include "core/launcher_variables.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

/// The port of the coordinator that `tutti launch` runs; nullopt under torchrun.
std::optional<std::uint16_t> read_coordinator_port(const VariableReader& variables, std::uint16_t master_port) {
  const auto text = variables.text(coordinator_port_variable);
  if (!text) return std::nullopt;
  const auto comma = text->find(',');
  const auto store = parse_port(std::string_view(*text).substr(0, comma));
  const auto master = comma == std::string::npos ? std::nullopt : parse_port(std::string_view(*text).substr(comma + 1));
  if (!store || !master) {
    throw UsageError(format_variable(coordinator_port_variable, *text) +
                     ": it is set by `tutti launch`, to two ports with a comma between them. Unset it.");
  }
  return *master == master_port ? store : std::nullopt;
}

void read_master(const VariableReader& variables, Environment& environment) {
  const auto address = read_address(variables);
  const bool has_port = variables.has("MASTER_PORT");
  if (environment.world_size > 1 && !address) {
    throw UsageError("MASTER_ADDR is not set, but " + format_variable("WORLD_SIZE", environment.world_size) +
                     ": set it to the address of rank 0's node (127.0.0.1 on one node)");
  }
  if (environment.world_size > 1 && !has_port) {
    throw UsageError("MASTER_PORT is not set, but " + format_variable("WORLD_SIZE", environment.world_size) +
                     ": set it to a port that is free on rank 0's node");
  }
  if (address) environment.master_addr = *address;
  environment.master_port = read_port(variables).value_or(environment.master_port);
  if (const auto coordinator_port = read_coordinator_port(variables, environment.master_port)) {
    environment.master_port = *coordinator_port;
    environment.launcher_coordinator = true;
  }
}

}  // namespace

std::string coordinator_port_text(std::uint16_t coordinator_port, std::uint16_t master_port) {
  return std::to_string(coordinator_port) + "," + std::to_string(master_port);
}

Environment read_torchrun(const VariableReader& variables) {
  const VariableNames names{.rank = "RANK",
                            .size = "WORLD_SIZE",
                            .local_rank = "LOCAL_RANK",
                            .local_size = "LOCAL_WORLD_SIZE",
                            .group_rank = "GROUP_RANK",
                            .group_size = "GROUP_WORLD_SIZE"};
  const auto rank_and_size = read_pair(variables, names.rank, names.size);
  Environment environment;
  environment.launcher = "torchrun";
  environment.rank = rank_and_size->rank;
  environment.world_size = rank_and_size->size;
  read_nodes(variables, names, environment);
  read_master(variables, environment);
  environment.agent_store = variables.flag("TORCHELASTIC_USE_AGENT_STORE");
  environment.restart_count = variables.number("TORCHELASTIC_RESTART_COUNT").value_or(0);
  return environment;
}

}  // namespace tutti
