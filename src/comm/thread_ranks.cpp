#include "tutti/comm/thread_ranks.h"

#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "comm/bootstrap.h"
#include "core/job_secret.h"
#include "core/launchers.h"
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
  auto checked = options;
  const auto requested = comm::check_options(checked);
  if (size == 1) {
    std::vector<Communicator> one;
    one.push_back(comm::make_single_communicator(requested, checked));
    return one;
  }
  const auto encryption = comm::encryption_secret(checked);
  const auto for_coordinator = comm::coordinator_options(checked, size);
  const std::string host = std::string(local_coordinator_scheme) + "tutti-threads-" + make_job_secret()->text();
  auto coordinator = comm::start_coordinator(comm::listen_for_coordinator(host, nullptr), for_coordinator);
  std::vector<std::string> infos;
  const auto node_of = [&](int rank) { return std::to_string(rank / (size / num_nodes)); };
  for (int rank = 0; rank < size; ++rank) {
    infos.push_back(
        comm::RankInfo{.node = node_of(rank), .backend = requested.name, .encrypts = encryption != nullptr}.to_text());
  }
  std::vector<Communicator> communicators(static_cast<std::size_t>(size));
  const auto connect = [&](int rank) {
    auto place = rank == 0 ? std::move(coordinator) : comm::CoordinatorPlace{.host = host};
    auto rendezvous = comm::join_at_place(std::move(place), rank, "threads", node_of(rank), for_coordinator);
    communicators[static_cast<std::size_t>(rank)] =
        comm::connect_ranks({.rendezvous = std::move(rendezvous),
                             .rank = rank,
                             .rank_infos = infos,
                             .network_address = [] { return std::string(loopback_host); },
                             .encryption = encryption,
                             .recorder = flight::make_recorder({.rank = rank, .world_size = size}, nullptr)},
                            requested, checked);
  };
  on_threads(size, connect);
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
