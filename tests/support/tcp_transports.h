#pragma once
// The transports of ranks that are threads of one process.
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/backend/topology.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/transport/tcp/tcp_transport.h"
#include "core/job_secret.h"
#include "core/launchers.h"
#include "core/socket.h"

namespace tutti::test {

/// One for each rank of a job on one node.
inline std::vector<std::shared_ptr<comm::Transport>> make_tcp_transports(int size) {
  constexpr auto timeout = std::chrono::seconds(20);
  const comm::CoordinatorOptions options{
      .world_size = size, .connect_timeout = timeout, .timeouts = {.heartbeat = timeout, .deadlock = timeout}};
  const auto host = std::string(local_coordinator_scheme) + "tutti-test-" + make_job_secret()->text();
  auto coordinator = comm::start_coordinator(comm::listen_for_coordinator(host, nullptr), options);
  std::vector<comm::MessageSocket> sockets;
  std::vector<std::string> addresses;
  for (int rank = 0; rank < size; ++rank) {
    addresses.push_back(sockets.emplace_back(comm::MessageSocket::listen(loopback_host)).to_text());
  }
  std::vector<std::shared_ptr<comm::Transport>> transports;
  for (int rank = 0; rank < size; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    auto place = rank == 0 ? std::move(coordinator) : comm::CoordinatorPlace{.host = host};
    const auto rendezvous = comm::join_at_place(std::move(place), rank, "test", "node", options);
    const auto monitor = std::make_shared<comm::HeartbeatMonitor>(
        rendezvous.job->events(),
        comm::HeartbeatMonitorOptions{.rank = rank,
                                      .node_of_rank = std::vector<int>(static_cast<std::size_t>(size)),
                                      .heartbeat_timeout = timeout});
    const auto endpoint =
        std::make_shared<comm::Endpoint>(std::move(sockets[index]), addresses, comm::EndpointOptions{.rank = rank});
    transports.push_back(
        comm::make_tcp_transport(rendezvous, endpoint, rank, comm::GroupHealth(monitor, comm::all_ranks(size))));
  }
  return transports;
}

}  // namespace tutti::test
