#include "tutti/core/environment.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>

#include "tutti/core/error.h"

namespace tutti {
namespace {

constexpr int max_port = 65535;

std::string shown(const std::string& name, const std::string& value) {
  return name + "='" + value + "'";
}
std::string shown(const std::string& name, int value) {
  return name + "=" + std::to_string(value);
}

/// Reads variables and turns what is wrong with one into an error that names it.
class Variables {
 public:
  explicit Variables(const VariableLookup& lookup) : lookup_(lookup) {}

  std::optional<std::string> text(const std::string& name) const { return lookup_(name); }

  std::optional<int> number(const std::string& name) const {
    const auto value = lookup_(name);
    if (!value) return std::nullopt;
    int parsed = 0;
    const char* end = value->data() + value->size();
    const auto [stopped, error] = std::from_chars(value->data(), end, parsed);
    if (error != std::errc{} || stopped != end || parsed < 0) {
      throw UsageError(shown(name, *value) + " is not a whole number of 0 or more: correct it, or unset " + name);
    }
    return parsed;
  }

  bool flag(const std::string& name) const {
    std::string value = lookup_(name).value_or("");
    std::transform(value.begin(), value.end(), value.begin(), [](unsigned char c) { return std::tolower(c); });
    return value == "true" || value == "1";
  }

 private:
  const VariableLookup& lookup_;
};

struct RankAndSize {
  int rank;
  int size;
};

/// A rank and the size it belongs to; nullopt where neither is set.
std::optional<RankAndSize> read_pair(const Variables& variables, const std::string& rank_name,
                                     const std::string& size_name) {
  const auto rank = variables.number(rank_name);
  const auto size = variables.number(size_name);
  if (!rank && !size) return std::nullopt;
  if (!rank) throw UsageError(shown(size_name, *size) + " is set but " + rank_name + " is not: set both or neither");
  if (!size) throw UsageError(shown(rank_name, *rank) + " is set but " + size_name + " is not: set both or neither");
  if (*size == 0) throw UsageError(shown(size_name, *size) + " leaves no rank to run: it must be at least 1");
  if (*rank >= *size) {
    throw UsageError(shown(rank_name, *rank) + " is out of range for " + shown(size_name, *size) +
                     ": it must be less than " + std::to_string(*size));
  }
  return RankAndSize{*rank, *size};
}

std::uint16_t read_port(const Variables& variables, std::uint16_t unset) {
  const auto port = variables.number("MASTER_PORT");
  if (!port) return unset;
  if (*port == 0 || *port > max_port) {
    throw UsageError(shown("MASTER_PORT", *port) + " is not a port: choose one from 1 to 65535");
  }
  return static_cast<std::uint16_t>(*port);
}

/// The error for nodes that cannot be told apart because ranks do not divide evenly among them.
UsageError uneven_nodes(const std::string& known, int world_size, const std::string& missing) {
  return UsageError(known + " does not fit " + shown("WORLD_SIZE", world_size) +
                    " as equal nodes of consecutive ranks: set " + missing + " too");
}

/// Fills the place within and among nodes. What is not set follows from the rest if nodes are equal and ranks on one
/// node are consecutive, which is how every launcher numbers them.
void read_nodes(const Variables& variables, Environment& environment) {
  const auto local = read_pair(variables, "LOCAL_RANK", "LOCAL_WORLD_SIZE");
  const auto group = read_pair(variables, "GROUP_RANK", "GROUP_WORLD_SIZE");
  const int rank = environment.rank;
  const int world_size = environment.world_size;
  if (local && local->size > world_size) {
    throw UsageError(shown("LOCAL_WORLD_SIZE", local->size) + " is more than " + shown("WORLD_SIZE", world_size) +
                     ": a node cannot hold more ranks than the job has");
  }
  if (group && group->size > world_size) {
    throw UsageError(shown("GROUP_WORLD_SIZE", group->size) + " is more than " + shown("WORLD_SIZE", world_size) +
                     ": every node needs a rank");
  }
  environment.num_nodes = group ? group->size : local ? world_size / local->size : 1;
  environment.local_world_size = local ? local->size : world_size / environment.num_nodes;
  environment.node_rank = group ? group->rank : rank / environment.local_world_size;
  environment.local_rank = local ? local->rank : rank % environment.local_world_size;

  if (local && group) return;  // nothing was deduced, and uneven nodes are allowed
  const bool even = environment.num_nodes * environment.local_world_size == world_size &&
                    environment.node_rank * environment.local_world_size + environment.local_rank == rank;
  if (even) return;
  if (local) {
    throw uneven_nodes(shown("LOCAL_RANK", local->rank) + " with " + shown("LOCAL_WORLD_SIZE", local->size) + " and " +
                           shown("RANK", rank),
                       world_size, "GROUP_RANK and GROUP_WORLD_SIZE");
  }
  throw uneven_nodes(shown("GROUP_RANK", group->rank) + " with " + shown("GROUP_WORLD_SIZE", group->size) + " and " +
                         shown("RANK", rank),
                     world_size, "LOCAL_RANK and LOCAL_WORLD_SIZE");
}

void read_master(const Variables& variables, Environment& environment) {
  const auto address = variables.text("MASTER_ADDR");
  const bool has_port = variables.text("MASTER_PORT").has_value();
  if (environment.world_size > 1 && (!address || address->empty())) {
    throw UsageError("MASTER_ADDR is not set, but " + shown("WORLD_SIZE", environment.world_size) +
                     ": set it to the address of rank 0's node (127.0.0.1 on one node)");
  }
  if (environment.world_size > 1 && !has_port) {
    throw UsageError("MASTER_PORT is not set, but " + shown("WORLD_SIZE", environment.world_size) +
                     ": set it to a port that is free on rank 0's node");
  }
  if (address && !address->empty()) environment.master_addr = *address;
  environment.master_port = read_port(variables, environment.master_port);
}

}  // namespace

Environment read_environment(const VariableLookup& lookup) {
  const Variables variables(lookup);
  Environment environment;
  const auto place = read_pair(variables, "RANK", "WORLD_SIZE");
  if (!place) return environment;

  environment.launcher = "torchrun";
  environment.rank = place->rank;
  environment.world_size = place->size;
  read_nodes(variables, environment);
  read_master(variables, environment);
  environment.agent_store = variables.flag("TORCHELASTIC_USE_AGENT_STORE");
  environment.restart_count = variables.number("TORCHELASTIC_RESTART_COUNT").value_or(0);
  if (environment.rank == 0) environment.master_listen_fd = variables.number("TUTTI_MASTER_LISTEN_FD");
  return environment;
}

Environment read_environment() {
  return read_environment([](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe)
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
}

}  // namespace tutti
