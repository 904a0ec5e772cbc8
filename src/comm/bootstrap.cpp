#include "comm/bootstrap.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/algorithms/p2p_backend.h"
#include "comm/backend/describe.h"
#include "comm/backend/failure_timeouts.h"
#include "comm/backend/topology.h"
#include "comm/device/backend.h"
#include "comm/device/c10d_gloo.h"
#include "comm/device/encoded_sums.h"
#include "comm/device/nccl.h"
#include "comm/device/staged.h"
#include "comm/make_communicator.h"
#include "comm/select_backend.h"
#include "comm/single_backend.h"
#include "comm/transport/mpi/mpi_transport.h"
#include "comm/transport/tcp/group_endpoint.h"
#include "comm/transport/tcp/tcp_transport.h"
#include "core/job_secret.h"
#include "core/launchers.h"
#include "core/port_range.h"
#include "core/socket.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"

namespace tutti::comm {
namespace {

constexpr const char* backend_variable = "TUTTI_BACKEND";

std::string host_at(const BindAddress& bind_address) {
  return bind_address.interface.empty() ? bind_address.address : interface_address(bind_address.interface);
}

/// Only messages over TCP are encrypted.
void check_encryption(const RendezvousResult& result, const BackendRequest& requested, const DeviceSelection& devices) {
  if (!result.rendezvous.encrypts || std::ranges::all_of(result.nodes, [](int node) { return node == 0; })) return;
  using ForDevices = BackendRequest::ForDevices;
  if (requested.host.starts_with("mpi")) {
    throw UsageError(requested.error_prefix +
                     "MPI does not encrypt what ranks of several nodes send: choose the backend auto or tcp, or turn "
                     "encryption off.");
  }
  if (devices.backend != ForDevices::none && devices.backend != ForDevices::staged) {
    throw UsageError(
        requested.error_prefix +
        "The c10d backend for the ranks' devices does not encrypt what ranks of several nodes send: choose "
        "the backend staged, or turn encryption off.");
  }
}

/// Adds to the backend for CPU memory the one for the ranks' devices.
std::shared_ptr<Backend> add_device_backend(std::shared_ptr<Backend> host, const DeviceSelection& selection,
                                            const RendezvousResult& result, const CommunicatorOptions& options) {
  if (!selection.reason.empty() && result.rank == 0) {
    Logger(result.rank).info("tensors on devices pass through CPU memory (backend staged): " + selection.reason);
  }
  switch (selection.backend) {
    case BackendRequest::ForDevices::nccl:
      return add_encoded_sums(make_device_backend(host, nccl_backend_factory(result.rendezvous.store), "job"), "job");
    case BackendRequest::ForDevices::c10d_gloo:
      return add_encoded_sums(
          make_device_backend(host,
                              c10d_gloo_factory(result.rendezvous.store, result.bind_address.interface,
                                                result.bind_address.address, options.timeout),
                              "job"),
          "job");
    case BackendRequest::ForDevices::factory:
      return add_encoded_sums(make_device_backend(host, *options.device_backend, "job"), "job");
    case BackendRequest::ForDevices::staged:
      return make_staged_backend(std::move(host));
    default:
      return host;
  }
}

}  // namespace

CoordinatorOptions coordinator_options(const CommunicatorOptions& options, int size) {
  return {.world_size = size,
          .connect_timeout = options.connect_timeout,
          .heartbeat_timeout = heartbeat_timeout(options),
          .deadlock_timeout = deadlock_timeout(options)};
}

JobSecretPtr encryption_secret(const CommunicatorOptions& options) {
  const bool by_variable = !options.encryption && read_encryption(&process_variable);
  if (!options.encryption && !by_variable) return nullptr;
  auto secret = read_job_secret(&process_variable);
  if (secret) return secret;
  throw UsageError((by_variable ? std::string(encryption_variable) + "=1" : "CommunicatorOptions::encryption") +
                   ": encryption between ranks needs a secret that all ranks share, and this job has none. Set "
                   "TUTTI_JOB_SECRET_FILE on all ranks.");
}

void encrypt_messages(Rendezvous& rendezvous, const JobSecretPtr& secret) {
  if (!secret) return;
  rendezvous.secret = secret;
  rendezvous.encrypts = true;
}

void check_same_encryption(int rank, bool encrypts, int other, bool other_encrypts) {
  if (encrypts == other_encrypts) return;
  throw UsageError("rank " + std::to_string(encrypts ? rank : other) + " asks for encryption between ranks, rank " +
                   std::to_string(encrypts ? other : rank) + " does not: set " + encryption_variable +
                   " or CommunicatorOptions::encryption on all ranks, or on none.");
}

std::optional<BindAddress> bind_address_from_env() {
  const auto interface = process_variable("GLOO_SOCKET_IFNAME");
  if (!interface || interface->empty()) return std::nullopt;
  return BindAddress{.interface = *interface, .address = ""};
}

BackendRequest check_options(const CommunicatorOptions& options) {
  const auto variable = options.backend == "auto" ? process_variable(backend_variable) : std::nullopt;
  const std::string name = variable.value_or(options.backend);
  auto requested = parse_backend(name, variable ? std::string(backend_variable) + "=" + name + ": " : std::string(),
                                 options.device_backend);
  if (const auto reason = c10d_gloo_unavailable_reason();
      requested.for_devices == BackendRequest::ForDevices::c10d_gloo && !reason.empty()) {
    throw UsageError(requested.error_prefix + "The backend c10d:gloo cannot be used: " + reason + ".");
  }
  for (const auto timeout : {options.timeout, options.connect_timeout}) {
    if (timeout <= std::chrono::milliseconds::zero()) {
      throw UsageError("CommunicatorOptions: a timeout must be positive, not " + describe_duration(timeout) + ".");
    }
  }
  (void)read_port_range(&process_variable);
  (void)heartbeat_timeout(options);  // all throw UsageError for a wrong value
  (void)deadlock_timeout(options);
  return requested;
}

Communicator make_single_communicator(const BackendRequest& requested, const CommunicatorOptions& options) {
  (void)select_device_backend(requested, {device_info(requested, options, /*local_rank=*/0)}, {0});
  return make_communicator(make_single_backend(), options, "");
}

Communicator connect_ranks(const RendezvousResult& result, const BackendRequest& requested,
                           const CommunicatorOptions& options, std::shared_ptr<flight::Recorder> recorder) {
  const auto selection = select_device_backend(requested, result.devices, result.nodes);
  check_encryption(result, requested, selection);
  const auto timeout = options.connect_timeout;
  std::vector<int> all_ranks(result.nodes.size());
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  const bool has_several_nodes = std::ranges::any_of(result.nodes, [](int node) { return node != 0; });
  // Inside a node, ranks that wait in shared memory log which rank is stopped, with its last call.
  GroupHealth monitor{
      std::make_shared<HeartbeatMonitor>(result.rendezvous.job->events(),
                                         HeartbeatMonitorOptions{.rank = result.rank,
                                                                 .node_of_rank = result.nodes,
                                                                 .heartbeat_timeout = heartbeat_timeout(options),
                                                                 .logs_warnings = has_several_nodes}),
      all_ranks};
  // The first message resolves the address: a job without messages works on an interface without an address.
  const auto host = [bind_address = result.bind_address] { return host_at(bind_address); };
  const auto endpoint = std::make_shared<Endpoint>(result.rendezvous, result.rank, host);
  auto transport = requested.host.starts_with("mpi")
                       ? connect_mpi(result.rendezvous, result.rank, std::move(monitor), timeout)
                       : make_tcp_transport(result.rendezvous, endpoint, result.rank, std::move(monitor), timeout);
  auto messages = std::make_shared<P2pBackend>(std::move(transport), make_topology(result.nodes, result.rank),
                                               heartbeat_timeout(options));
  auto backend = select_backend(messages, requested.host == "mpi" ? "auto" : requested.host, "job", timeout);
  backend = add_device_backend(std::move(backend), selection, result, options);
  auto p2p = std::make_shared<GroupEndpoint>(endpoint, "job", std::move(all_ranks), result.rank);
  auto deadlock_detector = std::make_shared<DeadlockDetector>(
      result.rendezvous,
      DeadlockDetectorOptions{
          .rank = result.rank, .size = static_cast<int>(result.nodes.size()), .timeout = deadlock_timeout(options)});
  return make_communicator(
      std::move(backend), options, "job",
      {.recorder = std::move(recorder), .p2p = std::move(p2p), .deadlock_detector = std::move(deadlock_detector)});
}

}  // namespace tutti::comm
