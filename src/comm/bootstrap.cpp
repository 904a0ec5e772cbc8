#include "comm/bootstrap.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <sstream>
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
#include "comm/rendezvous/coordinator_store.h"
#include "comm/rendezvous/node_id.h"
#include "comm/select_backend.h"
#include "comm/single_backend.h"
#include "comm/transport/mpi/mpi_transport.h"
#include "comm/transport/tcp/endpoint.h"
#include "comm/transport/tcp/group_endpoint.h"
#include "comm/transport/tcp/tcp_transport.h"
#include "core/host_name.h"
#include "core/job_secret.h"
#include "core/launchers.h"
#include "core/port_range.h"
#include "core/variables.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"

namespace tutti::comm {
namespace {

constexpr const char* backend_variable = "TUTTI_BACKEND";

/// Only messages over TCP are encrypted.
void require_encrypting_backends(const BackendRequest& requested, const DeviceSelection& devices) {
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
                                            const c10::intrusive_ptr<c10d::Store>& store, const std::string& address,
                                            const CommunicatorOptions& options) {
  if (!selection.reason.empty() && host->rank() == 0) {
    Logger(0).info("tensors on devices pass through CPU memory (backend staged): " + selection.reason);
  }
  C10dBackendFactory factory;
  switch (selection.backend) {
    case BackendRequest::ForDevices::nccl:
      factory = nccl_backend_factory(store);
      break;
    case BackendRequest::ForDevices::c10d_gloo:
      factory = c10d_gloo_factory(store, address, options.timeout);
      break;
    case BackendRequest::ForDevices::factory:
      factory = *options.device_backend;
      break;
    case BackendRequest::ForDevices::staged:
      return make_staged_backend(std::move(host));
    default:
      return host;
  }
  return add_encoded_sums(make_device_backend(host, std::move(factory), "job"), "job");
}

// A contradiction between the nodes that ranks report and what their launcher has told them.
void check_local_size(const std::vector<int>& nodes, std::size_t rank, int local_size) {
  const auto together = std::ranges::count(nodes, nodes[rank]);
  if (local_size == 0 || together == local_size) return;
  throw UsageError("rank " + std::to_string(rank) + " was told that its node holds " + std::to_string(local_size) +
                   " ranks, but " + std::to_string(together) +
                   " report that node: start the same number of ranks on every node, in order.");
}

/// The node of each rank, and the name of its machine. Throws UsageError if the ranks do not agree.
std::pair<std::vector<int>, std::vector<std::string>> nodes_and_hosts(const JoinedGroup& group) {
  std::vector<RankInfo> infos;
  std::vector<std::string> names, hosts;
  for (const auto& text : group.rank_infos) {
    names.push_back(infos.emplace_back(RankInfo::from_text(text)).node);
    hosts.push_back(infos.back().host);
  }
  auto nodes = number_nodes(names);
  const auto& own = infos[static_cast<std::size_t>(group.rank)];
  const auto own_name = "rank " + std::to_string(group.rank);
  for (std::size_t rank = 0; rank < infos.size(); ++rank) {
    const auto& info = infos[rank];
    const auto name = "rank " + std::to_string(rank);
    if (info.encrypts != own.encrypts) {
      throw UsageError((own.encrypts ? own_name : name) + " asks for encryption between ranks, " +
                       (own.encrypts ? name : own_name) + " does not: set " + encryption_variable +
                       " or CommunicatorOptions::encryption on all ranks, or on none.");
    }
    if (info.backend != own.backend) {
      throw UsageError(name + " asks for the backend " + info.backend + ", " + own_name + " for " + own.backend +
                       ": all must ask for the same.");
    }
    check_local_size(nodes, rank, info.local_size);
  }
  return {std::move(nodes), std::move(hosts)};
}

/// Selects and connects the backend. Throws PeerError for transfers that fail meanwhile.
std::shared_ptr<Backend> connect_backend(const std::shared_ptr<Backend>& messages, const std::string& requested,
                                         std::chrono::milliseconds timeout) {
  try {
    return select_backend(messages, requested, "job", timeout);
  } catch (const TransferError& error) {
    throw PeerError(
        "Connecting over " + messages->traits().name + ": " + describe_ranks(error.peers()) + ": " + error.what() + ".",
        error.peers());
  }
}

/// Precedes the reason in what a rank without an address publishes.
constexpr char no_address_mark = '!';

struct Peers {
  std::vector<std::string> addresses;  // by rank
  std::vector<DeviceInfo> devices;     // by rank
};

// A second exchange, because a rank's device and the address at which it listens follow from the nodes of all ranks.
// `own_address` may hold the reason for which this rank has none. Throws PeerError on all ranks for such a rank.
Peers exchange_peers(const JoinedGroup& group, const std::vector<int>& nodes, const std::string& own_address,
                     const BackendRequest& requested, const CommunicatorOptions& options) {
  const auto own_node = nodes.begin() + group.rank;
  const auto counted = static_cast<int>(std::count(nodes.begin(), own_node, *own_node));
  const auto device = device_info(requested, options, group.local_rank.value_or(counted));
  Peers peers;
  for (const auto& text : coordinator_all_gather(group.rendezvous, "peers", group.rank,
                                                 own_address + "\n" + device.to_text(), options.connect_timeout)) {
    const auto end = text.find('\n');
    const auto rank = static_cast<int>(peers.addresses.size());
    if (text.starts_with(no_address_mark)) {
      throw PeerError("Connecting: on rank " + std::to_string(rank) + ": " + text.substr(1, end - 1), {rank});
    }
    peers.addresses.push_back(text.substr(0, end));
    peers.devices.push_back(DeviceInfo::from_text(end == std::string::npos ? "" : text.substr(end + 1)));
  }
  return peers;
}

}  // namespace

CoordinatorOptions coordinator_options(const CommunicatorOptions& options, int size) {
  return {.world_size = size,
          .connect_timeout = options.connect_timeout,
          .timeouts = {.heartbeat = heartbeat_timeout(options), .deadlock = deadlock_timeout(options)}};
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

BackendRequest check_options(CommunicatorOptions& options) {
  const auto variable =
      options.backend == "auto" ? VariableReader(&process_variable).text(backend_variable) : std::nullopt;
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
  for (auto* const timeout :
       {&options.timeout, &options.connect_timeout, &options.heartbeat_timeout, &options.deadlock_timeout}) {
    *timeout = std::min(*timeout, longest_timeout);
  }
  return requested;
}

Communicator make_single_communicator(const BackendRequest& requested, const CommunicatorOptions& options) {
  (void)select_device_backend(requested, {device_info(requested, options, /*local_rank=*/0)}, {0});
  return make_communicator(make_single_backend(), options, "");
}

std::string RankInfo::to_text() const {
  return std::to_string(local_size) + " " + backend + (encrypts ? " 1 " : " 0 ") + host_name() + " " + node;
}

RankInfo RankInfo::from_text(const std::string& text) {
  std::istringstream words(text);
  RankInfo info;
  words >> info.local_size >> info.backend >> info.encrypts >> info.host >> std::ws;
  std::getline(words, info.node);
  return info;
}

Communicator connect_ranks(JoinedGroup group, const BackendRequest& requested, const CommunicatorOptions& options) {
  const auto [nodes, hosts] = nodes_and_hosts(group);
  const bool has_one_node = std::ranges::all_of(nodes, [](int node) { return node == 0; });
  std::string address;
  std::optional<MessageSocket> socket;
  std::string own_address;
  try {
    address = has_one_node ? loopback_host : group.network_address();
    socket = MessageSocket::listen(address);
    own_address = socket->to_text();
  } catch (const std::exception& error) {
    const std::string step = address.empty() ? "" : "listening on " + address + " failed: ";
    own_address = no_address_mark + step + first_line(error.what());
  }
  const auto peers = exchange_peers(group, nodes, own_address, requested, options);
  const auto selection = select_device_backend(requested, peers.devices, nodes);
  const bool encrypts = group.encryption != nullptr;
  if (encrypts && !has_one_node) require_encrypting_backends(requested, selection);
  const auto endpoint =
      std::make_shared<Endpoint>(*std::move(socket), peers.addresses,
                                 EndpointOptions{.rank = group.rank,
                                                 .secret = encrypts       ? group.encryption
                                                           : has_one_node ? nullptr
                                                                          : group.secret,
                                                 .encrypts = encrypts,
                                                 .acknowledgement_timeout = 2 * heartbeat_timeout(options)});
  const auto size = static_cast<int>(nodes.size());
  const auto timeout = options.connect_timeout;
  const auto& rendezvous = group.rendezvous;
  const GroupHealth health{
      std::make_shared<HeartbeatMonitor>(
          rendezvous.job->events(),
          HeartbeatMonitorOptions{.rank = group.rank,
                                  .node_of_rank = nodes,
                                  .host_of_rank = has_one_node ? std::vector<std::string>() : hosts,
                                  .heartbeat_timeout = heartbeat_timeout(options)}),
      all_ranks(size)};
  auto transport = requested.host.starts_with("mpi") ? connect_mpi(rendezvous, group.rank, health, timeout)
                                                     : make_tcp_transport(rendezvous, endpoint, group.rank, health);
  auto messages = std::make_shared<P2pBackend>(std::move(transport), make_topology(nodes, group.rank));
  auto backend = connect_backend(messages, requested.host == "mpi" ? "auto" : requested.host, timeout);
  const auto store = c10::make_intrusive<c10d::PrefixStore>(
      rendezvous.group, c10::make_intrusive<CoordinatorStore>(rendezvous.job->client(), timeout));
  backend = add_device_backend(std::move(backend), selection, store, address, options);
  const DeadlockDetectorOptions deadlock_options{.rank = group.rank, .timeout = deadlock_timeout(options)};
  return make_communicator(std::move(backend), options, "job",
                           {.recorder = std::move(group.recorder),
                            .p2p = std::make_shared<GroupEndpoint>(endpoint, "job", health, group.rank),
                            .deadlock_detector = std::make_shared<DeadlockDetector>(rendezvous, deadlock_options)});
}

}  // namespace tutti::comm
