// Communicator::connect(Store): connects ranks that share a c10d store, with any launcher.
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "comm/bootstrap.h"
#include "comm/rendezvous/local_address.h"
#include "comm/rendezvous/node_id.h"
#include "core/describe.h"
#include "core/launchers.h"
#include "core/socket.h"
#include "device/devices.h"
#include "flight/recorder.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// The store's host, as this rank resolves it; empty for a store without a host.
std::string host_of(const StorePtr& store) {
  const auto prefix = c10::dynamic_intrusive_pointer_cast<c10d::PrefixStore>(store);
  const auto below = prefix ? prefix->getUnderlyingNonPrefixStore() : store;
  const auto tcp = c10::dynamic_intrusive_pointer_cast<c10d::TCPStore>(below);
  return tcp ? tcp->getHost() : "";
}

// The address at which ranks of other nodes reach this rank.
comm::BindAddress bind_address_towards(const StorePtr& store) {
  if (auto bind_address = comm::bind_address_from_env()) return *std::move(bind_address);
  std::string host = host_of(store);
  if (host.empty()) host = process_variable("MASTER_ADDR").value_or("");
  if (host.empty()) {
    throw UsageError(
        "The ranks run on several nodes, and the store does not name the network that they share. Set "
        "GLOO_SOCKET_IFNAME to the interface on that network.");
  }
  return {.interface = "", .address = comm::local_address_towards(host)};
}

// Where rank 0 runs the coordinator: where other nodes reach this one or, if no network is known, at a local socket.
std::string coordinator_host(const StorePtr& store) {
  if (const auto bind_address = comm::bind_address_from_env()) {
    return interface_address(bind_address->interface);
  }
  std::string host = host_of(store);
  if (host.empty()) host = process_variable("MASTER_ADDR").value_or("");
  if (!host.empty()) return comm::local_address_towards(host);
  return std::string(local_store_scheme) + "tutti-" + make_job_secret()->text();
}

struct JoinedRanks {
  std::vector<std::string> nodes;  // by rank
  bool have_devices = false;       // some rank has one
};

// Each rank publishes the size of the group, the backend, whether it has a device, and its node.
JoinedRanks exchange_rank_infos(const comm::Rendezvous& rendezvous, int rank, int size, const std::string& backend,
                                bool has_device, std::chrono::milliseconds timeout) {
  const std::string text = std::to_string(size) + " " + backend + (has_device ? " 1 " : " 0 ") + comm::this_node_id();
  JoinedRanks all;
  for (const auto& info : comm::coordinator_all_gather(rendezvous, "job", rank, size, text, timeout)) {
    std::istringstream stream(info);
    std::string size_text;
    std::string other_backend;
    int device = 0;
    std::string node;
    stream >> size_text >> other_backend >> device;
    stream.ignore(1);
    std::getline(stream, node);
    const auto other_rank = std::to_string(all.nodes.size());
    if (!stream || size_text != std::to_string(size)) {
      throw UsageError("rank " + other_rank + " connects a group of " + size_text + " ranks, rank " +
                       std::to_string(rank) + " one of " + std::to_string(size) + ": all must pass the same size.");
    }
    if (other_backend != backend) {
      throw UsageError("rank " + other_rank + " asks for the backend " + other_backend + ", rank " +
                       std::to_string(rank) + " for " + backend + ": all must ask for the same.");
    }
    all.nodes.push_back(node);
    all.have_devices = all.have_devices || device != 0;
  }
  return all;
}

// What the ranks publish about their devices. A second exchange, because the number of a rank's device follows from the
// nodes of all ranks.
std::vector<comm::DeviceInfo> exchange_devices(const comm::Rendezvous& rendezvous,
                                               const comm::BackendRequest& requested,
                                               const CommunicatorOptions& options, int rank,
                                               const std::vector<int>& nodes) {
  const auto local_rank = static_cast<int>(std::count(nodes.begin(), nodes.begin() + rank, nodes[rank]));
  const auto text = comm::device_info(requested, options, local_rank).to_text();
  std::vector<comm::DeviceInfo> devices;
  for (const auto& info : comm::coordinator_all_gather(rendezvous, "devices", rank, static_cast<int>(nodes.size()),
                                                       text, options.connect_timeout)) {
    devices.push_back(comm::DeviceInfo::from_text(info));
  }
  return devices;
}

// In memory unless the group is the whole job: the files show ranks of the job.
std::shared_ptr<flight::Recorder> recorder_of_group(int rank, int size) {
  if (process_variable("RANK") != std::to_string(rank) || process_variable("WORLD_SIZE") != std::to_string(size)) {
    return flight::make_recorder({.rank = rank, .world_size = size}, nullptr);
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
  const auto requested = comm::check_options(options);
  if (size == 1) return comm::make_single_communicator(requested, options);
  const auto timeout = options.connect_timeout;
  // The program's store is not protected. A secret of the job also protects what rank 0 publishes there.
  auto secret = read_job_secret(&process_variable);
  comm::RendezvousResult result;
  try {
    result.rendezvous = comm::join_at_store(store, rank, rank == 0 ? coordinator_host(store) : "", comm::this_node_id(),
                                            secret, comm::coordinator_options(options, size));
  } catch (const UsageError&) {
    throw;
  } catch (const PeerError&) {
    throw;
  } catch (const std::exception& error) {
    throw PeerError(
        "rank " + std::to_string(rank) + " could not use the store that the ranks share: " + first_line(error.what()),
        {});
  }
  result.rank = rank;
  const bool has_device = options.device && devices::is_accelerator(*options.device);
  const auto infos = exchange_rank_infos(result.rendezvous, rank, size, requested.name, has_device, timeout);
  result.nodes = comm::number_nodes(infos.nodes);
  result.devices.resize(result.nodes.size());
  if (infos.have_devices || requested.needs_cuda()) {
    result.devices = exchange_devices(result.rendezvous, requested, options, rank, result.nodes);
  }
  const bool one_machine = std::ranges::count(result.nodes, result.nodes.front()) == size;
  result.bind_address = one_machine ? comm::loopback() : bind_address_towards(store);
  if (one_machine) result.rendezvous.secret = nullptr;
  return comm::connect_ranks(result, requested, options, recorder_of_group(rank, size));
}

}  // namespace tutti
