// Communicator::connect: from what the launcher says to connected ranks.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>
#include <string>
#include <utility>

#include "comm/choose_engine.h"
#include "comm/describe.h"
#include "comm/gloo_transport.h"
#include "comm/local_address.h"
#include "comm/make_communicator.h"
#include "comm/message_engine.h"
#include "comm/rendezvous.h"
#include "comm/single_engine.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

void check(const CommunicatorOptions& options) {
  constexpr std::array known{"auto", "gloo", "shared_memory", "hierarchical"};
  if (std::ranges::find(known, options.engine) == known.end()) {
    throw UsageError("There is no engine '" + options.engine + "'. Known: auto, gloo, shared_memory, hierarchical.");
  }
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

// Each rank tells the others its node, how many ranks it expects, and how many of them on its node.
std::string introduction(const Environment& environment) {
  std::string text;
  for (const int number : {environment.node_rank, environment.world_size, environment.local_world_size}) {
    text += std::to_string(number) + " ";
  }
  return text;
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

std::vector<int> nodes_from(const std::vector<std::string>& introductions, const Environment& environment) {
  std::vector<int> nodes;
  std::vector<int> local_sizes;
  for (const auto& introduced : introductions) {
    std::istringstream text(introduced);
    int world_size = 0;
    text >> nodes.emplace_back() >> world_size >> local_sizes.emplace_back();
    if (world_size != environment.world_size) {
      throw UsageError("rank " + std::to_string(nodes.size() - 1) + " was started with WORLD_SIZE " +
                       std::to_string(world_size) + ", rank " + std::to_string(environment.rank) + " with " +
                       std::to_string(environment.world_size) + ".");
    }
  }
  check_nodes(nodes, local_sizes);
  return nodes;
}

}  // namespace

Communicator Communicator::connect(const Environment& environment, const CommunicatorOptions& options) {
  check(options);
  if (environment.world_size == 1) return make_communicator(comm::make_single_engine(), options, "");

  const int rank = environment.rank;
  const int size = environment.world_size;
  const auto [rendezvous, introductions] =
      comm::join_job(environment, introduction(environment), options.connect_timeout);
  std::vector<int> nodes;
  try {
    nodes = nodes_from(introductions, environment);
  } catch (const UsageError&) {
    // All ranks see the same and throw; the one that serves the store must not take it away before they have seen it.
    comm::part(rendezvous, rank, size);
    throw;
  }
  auto layout = comm::make_layout(std::move(nodes), rank);
  auto transport = comm::connect_gloo(rendezvous, place_of(environment), rank, size, options.connect_timeout);
  auto messages = std::make_shared<comm::MessageEngine>(std::move(transport), std::move(layout));
  auto engine = comm::choose_engine(std::move(messages), options.engine, "job", options.connect_timeout);
  return make_communicator(std::move(engine), options, "job");
}

}  // namespace tutti
