// Communicator::connect(Store): ranks that share a store of c10d, whoever started them.
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "comm/connecting.h"
#include "comm/make_communicator.h"
#include "comm/meeting/local_address.h"
#include "comm/meeting/this_node.h"
#include "comm/single_engine.h"
#include "core/launchers.h"
#include "flight/recorder.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// Connections of its own: whoever waits on the program's store would else keep the group from it, and the other way
// round. A program that connects more than once over one store gets names of their own for each.
comm::Rendezvous open_rendezvous(const StorePtr& store, int rank) {
  const auto connects = store->add("tutti/connects/" + std::to_string(rank), 1);
  const std::string name = "tutti/" + std::to_string(connects);
  return {.store = c10::make_intrusive<c10d::PrefixStore>(name, store->clone()),
          .bulletin_store = c10::make_intrusive<c10d::PrefixStore>(name, store->clone()),
          .holder = -1};
}

// The host of the store, as this rank reaches it; empty for a store without one.
std::string host_of(const StorePtr& store) {
  const auto prefix = c10::dynamic_intrusive_pointer_cast<c10d::PrefixStore>(store);
  const auto below = prefix ? prefix->getUnderlyingNonPrefixStore() : store;
  const auto tcp = c10::dynamic_intrusive_pointer_cast<c10d::TCPStore>(below);
  return tcp ? tcp->getHost() : "";
}

// Where ranks of other nodes find this one.
comm::GlooPlace place_towards(const StorePtr& store) {
  if (auto place = comm::place_of_interface()) return *std::move(place);
  std::string host = host_of(store);
  if (host.empty()) host = process_variable("MASTER_ADDR").value_or("");
  if (host.empty()) {
    throw UsageError(
        "The ranks live on several nodes, and the store does not say which network they share. Set GLOO_SOCKET_IFNAME "
        "to its interface.");
  }
  return {.interface = "", .address = comm::local_address_towards(host)};
}

struct Introductions {
  std::vector<std::string> nodes;    // by rank
  std::vector<std::string> engines;  // by rank
};

Introductions introduce(const comm::Rendezvous& rendezvous, int rank, int size, const std::string& engine,
                        std::chrono::milliseconds timeout) {
  const auto text = std::to_string(size) + " " + engine + " " + comm::this_node();
  Introductions all;
  for (const auto& said : comm::exchange(rendezvous, "job", rank, size, text, timeout)) {
    const auto first = said.find(' ');
    const auto second = said.find(' ', first + 1);
    const auto who = std::to_string(all.nodes.size());
    if (second == std::string::npos || said.substr(0, first) != std::to_string(size)) {
      throw UsageError("rank " + who + " joins a group of " + said.substr(0, first) + " ranks, rank " +
                       std::to_string(rank) + " one of " + std::to_string(size) + ".");
    }
    all.engines.push_back(said.substr(first + 1, second - first - 1));
    all.nodes.push_back(said.substr(second + 1));
    if (all.engines.back() != engine) {
      throw UsageError("rank " + who + " asks for the engine " + all.engines.back() + ", rank " + std::to_string(rank) +
                       " for " + engine + ": all must ask for the same.");
    }
  }
  return all;
}

// A rank without a device of its own is every rank's concern: nobody must wait for it.
void agree_on_nccl(const comm::Rendezvous& rendezvous, const comm::WantedEngine& wanted, int rank,
                   const std::vector<int>& nodes, std::chrono::milliseconds timeout) {
  const auto local_rank = static_cast<int>(std::count(nodes.begin(), nodes.begin() + rank, nodes[rank]));
  std::string trouble;
  try {
    comm::require_nccl(wanted, local_rank);
  } catch (const UsageError& error) {
    trouble = error.what();
  }
  const auto troubles = comm::exchange(rendezvous, "nccl", rank, static_cast<int>(nodes.size()), trouble, timeout);
  const auto first = std::ranges::find_if(troubles, [](const std::string& text) { return !text.empty(); });
  if (first != troubles.end()) {
    throw UsageError("rank " + std::to_string(first - troubles.begin()) + ": " + *first);
  }
}

// A group that is not the whole job has ranks of its own, which would be taken for the job's.
std::shared_ptr<flight::Recorder> recorder_of_job(int rank, int size) {
  if (process_variable("RANK") != std::to_string(rank) || process_variable("WORLD_SIZE") != std::to_string(size)) {
    return nullptr;
  }
  const auto restarts = process_variable("TORCHELASTIC_RESTART_COUNT").value_or("0");
  return flight::make_recorder({.rank = rank, .world_size = size, .restart = std::atoi(restarts.c_str())});
}

}  // namespace

Communicator Communicator::connect(const StorePtr& store, int rank, int size, const CommunicatorOptions& options) {
  if (!store) throw UsageError("Communicator::connect: the store is null.");
  if (size < 1 || rank < 0 || rank >= size) {
    throw UsageError("Communicator::connect: rank " + std::to_string(rank) + " of " + std::to_string(size) +
                     ": ranks count from 0 to size - 1.");
  }
  const auto wanted = comm::check_options(options);
  if (size == 1) {
    comm::require_nccl(wanted, 0);
    return make_communicator(comm::make_single_engine(), options, "");
  }
  const auto timeout = options.connect_timeout;
  comm::MetRanks met;
  try {
    met.rendezvous = open_rendezvous(store, rank);
  } catch (const std::exception& error) {
    throw PeerFailure("rank " + std::to_string(rank) + " could not use the store that the ranks share: " + error.what(),
                      {});
  }
  try {
    met.rank = rank;
    met.nodes = comm::nodes_of(introduce(met.rendezvous, rank, size, wanted.name, timeout).nodes);
    if (wanted.name == "nccl") agree_on_nccl(met.rendezvous, wanted, rank, met.nodes, timeout);
    const bool alone = std::ranges::count(met.nodes, met.nodes.front()) == size;
    met.place = alone ? comm::loopback() : place_towards(store);
    // The store is the program's; what is connected by it is not.
    if (!alone) met.rendezvous.secret = read_job_secret(&process_variable);
    return comm::connect_ranks(met, wanted.name, options, recorder_of_job(rank, size));
  } catch (const UsageError&) {
    comm::part(met.rendezvous, rank, size);
    throw;
  }
}

}  // namespace tutti
