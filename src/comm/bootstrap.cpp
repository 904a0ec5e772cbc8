#include "comm/bootstrap.h"

#include <algorithm>
#include <array>
#include <exception>
#include <iterator>
#include <numeric>
#include <utility>

#include "comm/algorithms/p2p_backend.h"
#include "comm/backend/describe.h"
#include "comm/backend/failure_timeouts.h"
#include "comm/backend/topology.h"
#include "comm/device/backend.h"
#include "comm/device/nccl.h"
#include "comm/health/heartbeat_pairs.h"
#include "comm/make_communicator.h"
#include "comm/os/socket.h"
#include "comm/p2p/group_endpoint.h"
#include "comm/select_backend.h"
#include "comm/transport/mpi/mpi_transport.h"
#include "core/launchers.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

constexpr const char* backend_variable = "TUTTI_BACKEND";

std::string host_at(const BindAddress& bind_address) {
  return bind_address.interface.empty() ? bind_address.address : interface_address(bind_address.interface);
}

// The host of `bind_address`; empty if the interface has no address, because the liveness port is optional.
std::string host_if_any(const BindAddress& bind_address) {
  try {
    return host_at(bind_address);
  } catch (const std::exception&) {
    return "";
  }
}

// The heartbeat monitor of a job with several nodes; null with one node.
std::shared_ptr<HeartbeatMonitor> monitor_of_job(const RendezvousResult& result, const CommunicatorOptions& options) {
  if (pairs_between_nodes(result.nodes).empty()) return nullptr;
  return std::make_shared<HeartbeatMonitor>(result.rendezvous,
                                            HeartbeatMonitorOptions{.rank = result.rank,
                                                                    .node_of_rank = result.nodes,
                                                                    .heartbeat_timeout = heartbeat_timeout(options),
                                                                    .connect_timeout = options.connect_timeout,
                                                                    .host = host_if_any(result.bind_address)});
}

}  // namespace

std::optional<BindAddress> bind_address_from_env() {
  const auto interface = process_variable("GLOO_SOCKET_IFNAME");
  if (!interface || interface->empty()) return std::nullopt;
  return BindAddress{.interface = *interface, .address = ""};
}

BackendRequest check_options(const CommunicatorOptions& options) {
  constexpr std::array known{"auto", "gloo", "mpi", "mpi_only", "shared_memory", "hierarchical", "nccl"};
  const auto variable = options.backend == "auto" ? process_variable(backend_variable) : std::nullopt;
  BackendRequest requested{.name = variable.value_or(options.backend), .error_prefix = {}};
  if (variable) requested.error_prefix = std::string(backend_variable) + "=" + requested.name + ": ";
  if (std::ranges::find(known, requested.name) == known.end()) {
    throw UsageError(requested.error_prefix + "There is no backend '" + requested.name +
                     "'. Known: auto, gloo, mpi, mpi_only, shared_memory, hierarchical, nccl.");
  }
  for (const auto timeout : {options.timeout, options.connect_timeout}) {
    if (timeout <= std::chrono::milliseconds::zero()) {
      throw UsageError("CommunicatorOptions: a timeout must be positive, not " + describe_duration(timeout) + ".");
    }
  }
  (void)heartbeat_timeout(options);  // both throw UsageError for a wrong value
  (void)deadlock_timeout(options);
  return requested;
}

void require_nccl(const BackendRequest& requested, int local_rank) {
  if (requested.name != "nccl") return;
  if (const auto why = nccl_unavailable_reason(local_rank); !why.empty()) {
    throw UsageError(requested.error_prefix + "The backend nccl cannot be used: " + why + ". Leave it at auto.");
  }
}

Communicator connect_ranks(const RendezvousResult& result, const std::string& requested,
                           const CommunicatorOptions& options, std::shared_ptr<flight::Recorder> recorder) {
  const auto timeout = options.connect_timeout;
  std::vector<int> all_ranks(result.nodes.size());
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  GroupHealth monitor{monitor_of_job(result, options), all_ranks};
  auto transport =
      requested.starts_with("mpi")
          ? connect_mpi(result.rendezvous, result.rank, std::move(monitor), timeout)
          : make_gloo_transport(result.rendezvous, result.bind_address, result.rank, std::move(monitor), timeout);
  auto messages = std::make_shared<P2pBackend>(std::move(transport), make_topology(result.nodes, result.rank),
                                               heartbeat_timeout(options));
  const bool best_for_host = requested == "mpi" || requested == "nccl";
  auto backend = select_backend(messages, best_for_host ? "auto" : requested, "job", timeout);
  if (requested == "nccl") backend = make_device_backend(backend, nccl_backend_factory(result.rendezvous.store), "job");
  if (options.device_backend) backend = make_device_backend(backend, *options.device_backend, "job");
  // Ranks that share memory publish failure reports there, so they need no open connection to the store.
  const bool may_disconnect_store = backend != messages && backend->topology().num_nodes == 1;
  // The first message resolves the address: a job without messages works on an interface without an address.
  const auto host = [bind_address = result.bind_address] { return host_at(bind_address); };
  auto p2p = std::make_shared<GroupEndpoint>(std::make_shared<LazyEndpoint>(result.rendezvous, result.rank, host),
                                             "job", std::move(all_ranks), result.rank);
  auto deadlock_detector = std::make_shared<DeadlockDetector>(
      result.rendezvous, DeadlockDetectorOptions{.rank = result.rank,
                                                 .size = static_cast<int>(result.nodes.size()),
                                                 .timeout = deadlock_timeout(options),
                                                 .may_disconnect_store = may_disconnect_store});
  return make_communicator(
      std::move(backend), options, "job",
      {.recorder = std::move(recorder), .p2p = std::move(p2p), .deadlock_detector = std::move(deadlock_detector)});
}

}  // namespace tutti::comm
