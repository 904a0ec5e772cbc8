#include "tutti/detail/launch/launch_defaults.h"

#include "core/variables.h"
#include "launch/count_gpus.h"
#include "launch/rank_variables.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

int read_nodes(const VariableReader& variables) {
  const std::string name = "PET_NNODES";
  const std::string text = variables.text(name).value_or("1");
  const VariableLookup only = [&](const std::string&) { return resolve_nodes(format_variable(name, text), text); };
  const int nodes = *VariableReader(only).number(name);
  if (nodes == 0) throw UsageError(format_variable(name, text) + " leaves no node: it must be at least 1");
  return nodes;
}

int read_ranks(const std::string& name, const std::string& text, const NodeDevices& devices) {
  const VariableLookup only = [&](const std::string&) {
    return resolve_ranks(format_variable(name, text), text, devices);
  };
  const int ranks = *VariableReader(only).number(name);
  if (ranks == 0) throw UsageError(format_variable(name, text) + " leaves no rank to run: it must be at least 1");
  return ranks;
}

}  // namespace

NodeDevices node_devices(const VariableLookup& lookup) {
  return {.cores = allowed_cores(), .gpus = count_gpus("/dev", lookup("CUDA_VISIBLE_DEVICES"))};
}

std::string resolve_ranks(const std::string& setting, const std::string& text, const NodeDevices& devices) {
  if (text == "cpu" || (text == "auto" && devices.gpus == 0)) return std::to_string(devices.cores);
  if (text != "auto" && text != "gpu") return text;
  if (devices.gpus == 0) {
    throw UsageError(setting + ": there is no NVIDIA GPU in /dev that CUDA_VISIBLE_DEVICES allows; " +
                     "set the number of ranks");
  }
  return std::to_string(devices.gpus);
}

std::string resolve_nodes(const std::string& setting, const std::string& text) {
  const auto colon = text.find(':');
  std::string least = text.substr(0, colon);
  if (colon != std::string::npos && least != text.substr(colon + 1)) {
    throw UsageError(setting + " is a range, but tutti launch needs a fixed number of nodes: set one");
  }
  return least;
}

LaunchOptions launch_defaults(const VariableLookup& lookup) {
  const VariableReader variables(lookup);
  LaunchOptions options;
  options.num_nodes = read_nodes(variables);
  const std::string ranks_name = "PET_NPROC_PER_NODE";
  if (const auto text = variables.text(ranks_name)) {
    options.ranks_per_node = read_ranks(ranks_name, *text, node_devices(lookup));
  }
  options.node_rank = variables.number("PET_NODE_RANK").value_or(0);
  if (options.node_rank >= options.num_nodes) {
    throw UsageError(format_variable("PET_NODE_RANK", options.node_rank) + " is out of range for " +
                     format_variable("PET_NNODES", options.num_nodes));
  }
  options.master_port = read_port(variables, "PET_MASTER_PORT");
  // The default 127.0.0.1 is valid for one node only.
  if (options.num_nodes > 1) options.master_addr.clear();
  if (const auto address = read_address(variables, "PET_MASTER_ADDR")) options.master_addr = *address;
  return options;
}

}  // namespace tutti
