// Connects ranks that share a c10d store, with any launcher, or that know one another's addresses.
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <string>
#include <utility>

#include "comm/bootstrap.h"
#include "comm/connect_peers.h"
#include "comm/rendezvous/local_address.h"
#include "comm/rendezvous/node_id.h"
#include "core/describe.h"
#include "core/launchers.h"
#include "flight/recorder.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// The host on the network that the ranks share: that of their store, or the launcher's; empty if neither is known.
std::string host_on_network(const std::string& store_host) {
  return store_host.empty() ? process_variable("MASTER_ADDR").value_or("") : store_host;
}

// The address at which ranks of other nodes reach this rank.
std::string network_address_towards(const std::string& store_host) {
  auto address = comm::network_address(host_on_network(store_host));
  if (!address.empty()) return address;
  throw UsageError(
      "The ranks run on several nodes, and the store does not name the network that they share. Set "
      "GLOO_SOCKET_IFNAME to the interface on that network.");
}

// Where rank 0 runs the coordinator: where other nodes reach this one or, if no network is known, a local socket.
std::string coordinator_host(const std::string& store_host) {
  const auto address = comm::network_address(host_on_network(store_host));
  if (!address.empty()) return address;
  return std::string(local_coordinator_scheme) + "tutti-" + make_job_secret()->text();
}

// In memory unless the group is the whole job: the files show ranks of the job.
std::shared_ptr<flight::Recorder> recorder_of_group(int rank, int size) {
  if (process_variable("RANK") != std::to_string(rank) || process_variable("WORLD_SIZE") != std::to_string(size)) {
    return flight::make_recorder({.rank = rank, .world_size = size}, nullptr);
  }
  const auto restarts = process_variable("TORCHELASTIC_RESTART_COUNT").value_or("0");
  return flight::make_recorder({.rank = rank, .world_size = size, .restart = std::atoi(restarts.c_str())});
}

// The ranks have met at the coordinator.
Communicator connect_joined(comm::Rendezvous rendezvous, int rank, const std::string& store_host,
                            const comm::BackendRequest& requested, const JobSecretPtr& encryption,
                            const CommunicatorOptions& options) {
  const comm::RankInfo own{.node = comm::this_node_id(), .backend = requested.name, .encrypts = encryption != nullptr};
  auto infos = comm::coordinator_all_gather(rendezvous, "job", rank, own.to_text(), options.connect_timeout);
  const auto size = static_cast<int>(infos.size());
  return comm::connect_ranks({.rendezvous = std::move(rendezvous),
                              .rank = rank,
                              .rank_infos = std::move(infos),
                              .network_address = [&] { return network_address_towards(store_host); },
                              .secret = read_job_secret(&process_variable),
                              .encryption = encryption,
                              .recorder = recorder_of_group(rank, size)},
                             requested, options);
}

}  // namespace

namespace comm {

std::string host_of_store(const StorePtr& store) {
  // c10::dynamic_intrusive_pointer_cast() leaks a reference where the types differ.
  auto* const prefix = dynamic_cast<c10d::PrefixStore*>(store.get());
  const auto below = prefix ? prefix->getUnderlyingNonPrefixStore() : store;
  auto* const tcp = dynamic_cast<c10d::TCPStore*>(below.get());
  return tcp ? tcp->getHost() : "";
}

CoordinatorPlace listen_for_peers(const std::string& store_host) {
  return listen_for_coordinator(coordinator_host(store_host), read_job_secret(&process_variable));
}

Communicator connect_peers(PeerGroup group, const CommunicatorOptions& options) {
  auto checked = options;
  const auto requested = check_options(checked);
  if (group.size == 1) return make_single_communicator(requested, checked);
  const auto encryption = encryption_secret(checked);
  const auto deadline = Clock::now() + checked.connect_timeout;
  auto rest = checked;
  const auto count_time = [&] {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    rest.connect_timeout = std::max(left, std::chrono::milliseconds(1));
  };
  const auto secret = read_job_secret(&process_variable);
  const auto for_coordinator = coordinator_options(checked, group.size);
  auto place = parse_address(group.address, secret);
  if (!place) throw UsageError("the handle of rank 0 has no address.");
  if (group.rank == 0) place = start_coordinator(std::move(group.own_place), for_coordinator);
  auto rendezvous = join_at_place(*std::move(place), group.rank, "tutti/1", this_node_id(), for_coordinator);
  count_time();
  const auto agreements =
      coordinator_all_gather(rendezvous, "agreement", group.rank, group.agreement, rest.connect_timeout);
  for (int rank = 1; rank < group.size; ++rank) {
    const auto& agreement = agreements[static_cast<std::size_t>(rank)];
    if (agreement == agreements[0]) continue;
    throw UsageError("rank " + std::to_string(rank) + " passed " + agreement + ", rank 0 " + agreements[0] + ".");
  }
  count_time();
  return connect_joined(std::move(rendezvous), group.rank, group.store_host, requested, encryption, rest);
}

}  // namespace comm

Communicator Communicator::connect(const StorePtr& store, int rank, int size, const CommunicatorOptions& options) {
  if (!store) throw UsageError("Communicator::connect: the store is null.");
  if (size < 1 || rank < 0 || rank >= size) {
    throw UsageError("Communicator::connect: rank " + std::to_string(rank) + " of " + std::to_string(size) +
                     ": ranks count from 0 to size - 1.");
  }
  auto checked = options;
  const auto requested = comm::check_options(checked);
  if (size == 1) return comm::make_single_communicator(requested, checked);
  const auto encryption = comm::encryption_secret(checked);
  // The program's store is not protected. A secret of the job also protects what rank 0 publishes there.
  auto secret = read_job_secret(&process_variable);
  comm::Rendezvous rendezvous;
  try {
    rendezvous = comm::join_at_store(store, rank, rank == 0 ? coordinator_host(comm::host_of_store(store)) : "",
                                     comm::this_node_id(), secret, comm::coordinator_options(checked, size));
  } catch (const UsageError&) {
    throw;
  } catch (const PeerError&) {
    throw;
  } catch (const std::exception& error) {
    throw PeerError(
        "rank " + std::to_string(rank) + " could not use the store that the ranks share: " + first_line(error.what()),
        {});
  }
  return connect_joined(std::move(rendezvous), rank, comm::host_of_store(store), requested, encryption, checked);
}

}  // namespace tutti
