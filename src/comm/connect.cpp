// Communicator::connect(Environment): connects ranks by the launcher's variables.
#include <string>
#include <utility>

#include "comm/bootstrap.h"
#include "comm/rendezvous/local_address.h"
#include "core/job_secret.h"
#include "core/launchers.h"
#include "flight/recorder.h"

namespace tutti {
namespace {

// A coordinator with a local name is on this machine, so all ranks are, also if the variables describe several nodes.
bool has_local_coordinator(const Environment& environment) {
  return environment.master_addr.starts_with(local_coordinator_scheme);
}

std::string network_address_of(const Environment& environment) {
  return has_local_coordinator(environment) ? loopback_host : comm::network_address(environment.master_addr);
}

}  // namespace

Communicator Communicator::connect(const Environment& environment, const CommunicatorOptions& options) {
  auto checked = options;
  const auto requested = comm::check_options(checked);
  if (environment.world_size == 1) return comm::make_single_communicator(requested, checked);

  comm::JoinedGroup group{.rank = environment.rank,
                          .local_rank = environment.local_rank,
                          .network_address = [&] { return network_address_of(environment); },
                          .secret = has_local_coordinator(environment) ? nullptr : read_job_secret(&process_variable),
                          .encryption = comm::encryption_secret(checked)};
  const comm::RankInfo own{.node = std::to_string(environment.node_rank),
                           .local_size = environment.local_world_size,
                           .backend = requested.name,
                           .encrypts = group.encryption != nullptr};
  auto [rendezvous, values] = comm::join_job(environment, group.secret, own.to_text(),
                                             comm::coordinator_options(checked, environment.world_size));
  group.rendezvous = std::move(rendezvous);
  group.rank_infos = std::move(values);
  group.recorder = flight::make_recorder(
      {.rank = environment.rank, .world_size = environment.world_size, .restart = environment.restart_count});
  return comm::connect_ranks(std::move(group), requested, checked);
}

}  // namespace tutti
