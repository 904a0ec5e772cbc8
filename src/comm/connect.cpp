// Communicator::connect: from what the launcher says to connected ranks.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "comm/choose_engine.h"
#include "comm/device/engine.h"
#include "comm/device/nccl.h"
#include "comm/engine/describe.h"
#include "comm/engine/patience.h"
#include "comm/make_communicator.h"
#include "comm/meeting/local_address.h"
#include "comm/meeting/rendezvous.h"
#include "comm/meeting/silence.h"
#include "comm/messages/engine.h"
#include "comm/messages/gloo.h"
#include "comm/mpi/transport.h"
#include "comm/single_engine.h"
#include "core/launchers.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

constexpr const char* engine_variable = "TUTTI_ENGINE";

/// What the program asks for or, where it leaves that open, the one who starts it.
std::string wanted_engine(const CommunicatorOptions& options, int local_rank) {
  constexpr std::array known{"auto", "gloo", "mpi", "mpi_only", "shared_memory", "hierarchical", "nccl"};
  const auto variable = options.engine == "auto" ? process_variable(engine_variable) : std::nullopt;
  const std::string wanted = variable.value_or(options.engine);
  const std::string who = variable ? std::string(engine_variable) + "=" + wanted + ": " : "";
  if (std::ranges::find(known, wanted) == known.end()) {
    throw UsageError(who + "There is no engine '" + wanted +
                     "'. Known: auto, gloo, mpi, mpi_only, shared_memory, hierarchical, nccl.");
  }
  if (wanted == "nccl") {
    if (const auto why = comm::why_no_nccl(local_rank); !why.empty()) {
      throw UsageError(who + "The engine nccl cannot be used: " + why + ". Leave it at auto.");
    }
  }
  return wanted;
}

void check_timeouts(const CommunicatorOptions& options) {
  for (const auto timeout : {options.timeout, options.connect_timeout}) {
    if (timeout <= std::chrono::milliseconds::zero()) {
      throw UsageError("CommunicatorOptions: a timeout must be positive, not " + comm::describe_duration(timeout) +
                       ".");
    }
  }
}

comm::GlooPlace place_of(const Environment& environment) {
  if (environment.num_nodes == 1) return {.interface = "", .address = "127.0.0.1"};
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME")) return {.interface = interface, .address = ""};
  return {.interface = "", .address = comm::local_address_towards(environment.master_addr)};
}

// Ranks of several machines give one another signs of life.
comm::GroupPulse pulse_of_job(const comm::Rendezvous& rendezvous, int rank, const std::vector<int>& nodes,
                              std::chrono::milliseconds timeout) {
  std::vector<int> everyone(nodes.size());
  std::iota(everyone.begin(), everyone.end(), 0);
  const auto watched = comm::watched_by(rank, nodes);
  if (watched.empty()) return {nullptr, std::move(everyone)};
  const auto size = static_cast<int>(nodes.size());
  return {std::make_shared<comm::Pulse>(rendezvous, rank, size, watched, comm::stopped_timeout(), timeout),
          std::move(everyone)};
}

// Each rank tells the others its node, how many ranks it expects, how many of them on its node, and the engine.
std::string introduction(const Environment& environment, const std::string& engine) {
  std::string text;
  for (const int number : {environment.node_rank, environment.world_size, environment.local_world_size}) {
    text += std::to_string(number) + " ";
  }
  return text + engine;
}

// A launcher that says nothing of nodes lets each rank deduce its own: together they may contradict one another.
void check_nodes(const std::vector<int>& nodes, const std::vector<int>& local_sizes) {
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    const auto together = std::ranges::count(nodes, nodes[rank]);
    if (together == local_sizes[rank]) continue;
    std::string text = "rank " + std::to_string(rank) + " was told that its node holds ";
    text += std::to_string(local_sizes[rank]) + " ranks, but " + std::to_string(together);
    text += " say that they are on that node: start as many ranks on every node, in order.";
    throw UsageError(text);
  }
}

std::vector<int> nodes_from(const std::vector<std::string>& introductions, const Environment& environment,
                            const std::string& engine) {
  std::vector<int> nodes;
  std::vector<int> local_sizes;
  for (const auto& introduced : introductions) {
    std::istringstream text(introduced);
    int world_size = 0;
    std::string other;
    text >> nodes.emplace_back() >> world_size >> local_sizes.emplace_back() >> other;
    if (world_size != environment.world_size) {
      throw UsageError("rank " + std::to_string(nodes.size() - 1) + " was started with WORLD_SIZE " +
                       std::to_string(world_size) + ", rank " + std::to_string(environment.rank) + " with " +
                       std::to_string(environment.world_size) + ".");
    }
    if (other != engine) {
      throw UsageError("rank " + std::to_string(nodes.size() - 1) + " asks for the engine " + other + ", rank " +
                       std::to_string(environment.rank) + " for " + engine + ": all must ask for the same.");
    }
  }
  check_nodes(nodes, local_sizes);
  return nodes;
}

}  // namespace

Communicator Communicator::connect(const Environment& environment, const CommunicatorOptions& options) {
  const std::string wanted = wanted_engine(options, environment.local_rank);
  check_timeouts(options);
  (void)comm::stopped_timeout();  // whose variable may be wrong
  if (environment.world_size == 1) return make_communicator(comm::make_single_engine(), options, "");

  const int rank = environment.rank;
  const auto timeout = options.connect_timeout;
  const auto [rendezvous, introductions] = comm::join_job(environment, introduction(environment, wanted), timeout);
  std::shared_ptr<comm::Engine> engine;
  try {
    auto nodes = nodes_from(introductions, environment, wanted);
    auto pulse = pulse_of_job(rendezvous, rank, nodes, timeout);
    auto transport = wanted.starts_with("mpi") ? comm::connect_mpi(rendezvous, rank, std::move(pulse), timeout)
                                               : comm::make_gloo_transport(rendezvous, place_of(environment), rank,
                                                                           std::move(pulse), timeout);
    auto layout = comm::make_layout(std::move(nodes), rank);
    auto messages = std::make_shared<comm::MessageEngine>(std::move(transport), std::move(layout));
    const bool best_for_host = wanted == "mpi" || wanted == "nccl";
    engine = comm::choose_engine(std::move(messages), best_for_host ? "auto" : wanted, "job", timeout);
  } catch (const UsageError&) {
    // All ranks see the same and throw; the one that serves the store must not take it away before they have seen it.
    comm::part(rendezvous, rank, environment.world_size);
    throw;
  }
  if (wanted == "nccl") engine = comm::make_device_engine(engine, comm::nccl_backend(rendezvous.store), "job");
  return make_communicator(std::move(engine), options, "job");
}

}  // namespace tutti
