// Communicator::connect(Environment): connects ranks by the launcher's variables.
#include <algorithm>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "comm/bootstrap.h"
#include "comm/rendezvous/local_address.h"
#include "core/launchers.h"
#include "flight/recorder.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

comm::BindAddress bind_address_of(const Environment& environment) {
  // A coordinator with a local name is on this machine, so all ranks are, also if the variables describe several nodes.
  const bool one_machine = environment.num_nodes == 1 || environment.master_addr.starts_with(local_coordinator_scheme);
  if (one_machine) return comm::loopback();
  if (auto bind_address = comm::bind_address_from_env()) return *std::move(bind_address);
  return {.interface = "", .address = comm::local_address_towards(environment.master_addr)};
}

// The value that each rank publishes at the rendezvous: its node, world size, local world size, encryption, backend and
// device.
std::string rank_info(const Environment& environment, bool encrypts, const std::string& backend,
                      const comm::DeviceInfo& device) {
  std::string text;
  for (const int number :
       {environment.node_rank, environment.world_size, environment.local_world_size, encrypts ? 1 : 0}) {
    text += std::to_string(number) + " ";
  }
  return text + backend + " " + device.to_text();
}

// If the launcher does not name the nodes, each rank derives its own. This function rejects contradictions.
void check_nodes(const std::vector<int>& nodes, const std::vector<int>& local_sizes) {
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    const auto together = std::ranges::count(nodes, nodes[rank]);
    if (together == local_sizes[rank]) continue;
    std::string text = "rank " + std::to_string(rank) + " was told that its node holds ";
    text += std::to_string(local_sizes[rank]) + " ranks, but " + std::to_string(together);
    text += " report that node: start the same number of ranks on every node, in order.";
    throw UsageError(text);
  }
}

struct PublishedRanks {
  std::vector<int> nodes;                 // by rank
  std::vector<comm::DeviceInfo> devices;  // by rank
};

PublishedRanks parse_rank_infos(const std::vector<std::string>& rank_infos, const Environment& environment,
                                bool encrypts, const std::string& backend) {
  std::vector<int> nodes;
  std::vector<comm::DeviceInfo> devices;
  std::vector<int> local_sizes;
  for (const auto& info : rank_infos) {
    std::istringstream text(info);
    int world_size = 0;
    bool other_encrypts = false;
    std::string other_backend;
    text >> nodes.emplace_back() >> world_size >> local_sizes.emplace_back() >> other_encrypts >> other_backend;
    text.ignore(1);
    devices.push_back(comm::DeviceInfo::from_text({std::istreambuf_iterator<char>(text), {}}));
    if (world_size != environment.world_size) {
      throw UsageError("rank " + std::to_string(nodes.size() - 1) + " was started with WORLD_SIZE " +
                       std::to_string(world_size) + ", rank " + std::to_string(environment.rank) + " with " +
                       std::to_string(environment.world_size) + ".");
    }
    comm::check_same_encryption(environment.rank, encrypts, static_cast<int>(nodes.size()) - 1, other_encrypts);
    if (other_backend != backend) {
      throw UsageError("rank " + std::to_string(nodes.size() - 1) + " asks for the backend " + other_backend +
                       ", rank " + std::to_string(environment.rank) + " for " + backend +
                       ": all must ask for the same.");
    }
  }
  check_nodes(nodes, local_sizes);
  return {.nodes = std::move(nodes), .devices = std::move(devices)};
}

}  // namespace

Communicator Communicator::connect(const Environment& environment, const CommunicatorOptions& options) {
  const auto requested = comm::check_options(options);
  if (environment.world_size == 1) return comm::make_single_communicator(requested, options);

  const auto device = comm::device_info(requested, options, environment.local_rank);
  const auto encryption = comm::encryption_secret(options);
  const bool encrypts = encryption != nullptr;
  auto [rendezvous, values] = comm::join_job(environment, rank_info(environment, encrypts, requested.name, device),
                                             comm::coordinator_options(options, environment.world_size));
  auto infos = parse_rank_infos(values, environment, encrypts, requested.name);
  comm::encrypt_messages(rendezvous, encryption);
  const comm::RendezvousResult result{.rendezvous = rendezvous,
                                      .rank = environment.rank,
                                      .nodes = std::move(infos.nodes),
                                      .devices = std::move(infos.devices),
                                      .bind_address = bind_address_of(environment)};
  auto recorder = flight::make_recorder(
      {.rank = environment.rank, .world_size = environment.world_size, .restart = environment.restart_count});
  return comm::connect_ranks(result, requested, options, std::move(recorder));
}

}  // namespace tutti
