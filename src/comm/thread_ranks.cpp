#include "tutti/comm/thread_ranks.h"

#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "comm/algorithms/p2p_backend.h"
#include "comm/backend/topology.h"
#include "comm/device/backend.h"
#include "comm/device/encoded_sums.h"
#include "comm/device/staged.h"
#include "comm/make_communicator.h"
#include "comm/select_backend.h"
#include "comm/select_device_backend.h"
#include "comm/transport/tcp/endpoint.h"
#include "comm/transport/tcp/group_endpoint.h"
#include "comm/transport/thread_transport.h"
#include "flight/recorder.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

/// Runs `work` for all ranks concurrently, because connecting needs all of them. Rethrows the failure of the lowest
/// rank.
void on_threads(int size, const std::function<void(int)>& work) {
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        work(rank);
      } catch (...) {
        failures[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace

std::vector<Communicator> make_thread_communicators(int size, const CommunicatorOptions& options, int num_nodes) {
  if (size < 1 || num_nodes < 1 || size % num_nodes != 0) {
    throw UsageError("make_thread_communicators: " + std::to_string(size) + " ranks on " + std::to_string(num_nodes) +
                     " nodes; the ranks must be divisible by the nodes.");
  }
  std::vector<int> node_of_rank;
  for (int rank = 0; rank < size; ++rank) node_of_rank.push_back(rank / (size / num_nodes));

  auto transports = comm::make_thread_transports(size);
  std::vector<comm::MessageSocket> sockets;
  std::vector<std::string> addresses;
  for (int rank = 0; rank < size; ++rank) {
    addresses.push_back(sockets.emplace_back(comm::MessageSocket::listen("127.0.0.1")).to_text());
  }
  const auto requested = comm::parse_backend(options.backend, "", std::nullopt);
  std::vector<Communicator> communicators(static_cast<std::size_t>(size));
  const auto make = [&](int rank) {
    std::shared_ptr<comm::Backend> backend = std::make_shared<comm::P2pBackend>(
        std::move(transports[static_cast<std::size_t>(rank)]), comm::make_topology(node_of_rank, rank));
    // Messages between threads are copies in memory, so "auto" needs no other backend.
    if (requested.host != "auto") {
      backend = comm::select_backend(std::move(backend), requested.host, "threads", options.connect_timeout);
    }
    if (requested.for_devices == comm::BackendRequest::ForDevices::staged) {
      backend = comm::make_staged_backend(std::move(backend));
    }
    if (options.device_backend) {
      backend = comm::make_device_backend(backend, *options.device_backend, "threads");
      backend = comm::add_encoded_sums(backend, "threads");
    }
    const auto endpoint = std::make_shared<comm::Endpoint>(std::move(sockets[static_cast<std::size_t>(rank)]),
                                                           addresses, comm::EndpointOptions{.rank = rank});
    // "auto" reports no rank's last operation, so nothing would read the record.
    auto recorder =
        requested.host == "auto" ? nullptr : flight::make_recorder({.rank = rank, .world_size = size}, nullptr);
    communicators[static_cast<std::size_t>(rank)] =
        make_communicator(std::move(backend), options, "threads",
                          {.recorder = std::move(recorder),
                           .p2p = std::make_shared<comm::GroupEndpoint>(
                               endpoint, "threads", comm::GroupHealth(nullptr, comm::all_ranks(size)), rank)});
  };
  on_threads(size, make);
  return communicators;
}

void run_thread_ranks(int size, const std::function<void(Communicator)>& body, const CommunicatorOptions& options,
                      int num_nodes) {
  auto communicators = make_thread_communicators(size, options, num_nodes);
  std::mutex mutex;
  std::exception_ptr first_failure;
  // Record a failure while the rank's communicator exists: ranks that fail because of this rank then fail later. The
  // communicator is destroyed during unwinding, so its destructor does not wait for peers.
  const auto run_rank = [&](int rank) {
    const Communicator communicator = std::move(communicators[static_cast<std::size_t>(rank)]);
    try {
      body(communicator);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!first_failure) first_failure = std::current_exception();
      throw;
    }
  };
  try {
    on_threads(size, run_rank);
  } catch (...) {
    std::rethrow_exception(first_failure ? first_failure : std::current_exception());
  }
}

}  // namespace tutti
