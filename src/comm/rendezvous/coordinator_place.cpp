#include "comm/rendezvous/coordinator_place.h"

#include <unistd.h>

#include <sstream>
#include <utility>

#include "coordinator/address.h"
#include "core/bound_socket.h"
#include "core/hash.h"
#include "core/launchers.h"
#include "core/socket.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

constexpr const char* no_secret = "-";

FileDescriptor listen_at(const Environment& environment) {
  auto socket = environment.num_nodes == 1 ? bind_to_loopback(environment.master_port)
                                           : bind_to_host(environment.master_addr, environment.master_port);
  start_listening(socket);
  return std::move(socket.fd);
}

// The same on all ranks of the user, within the length of a socket's name.
std::string local_host(const std::string& host) {
  constexpr std::size_t longest = 70;
  auto job = *coordinator::local_name(host);
  if (job.size() > longest) job = job.substr(0, longest) + std::to_string(fnv1a(job));
  return std::string(local_coordinator_scheme) + "tutti/" + std::to_string(::geteuid()) + "/" + job;
}

}  // namespace

CoordinatorPlace coordinator_of_job(const Environment& environment, const JobSecretPtr& secret,
                                    const CoordinatorOptions& options) {
  const bool serves = environment.rank == 0 && !environment.launcher_coordinator;
  if (environment.master_addr.starts_with(local_coordinator_scheme)) {
    const auto host = local_host(environment.master_addr);
    if (!serves) return {.host = host};
    return start_coordinator(listen_for_coordinator(host, nullptr), options);
  }
  if (serves) {
    auto listening = listen_at(environment);
    const auto address = local_address_of(listening.get());  // at which rank 0 reaches its own coordinator
    return start_coordinator({.host = address.host,
                              .port = static_cast<std::uint16_t>(address.port),
                              .secret = secret,
                              .job = environment.job,
                              .listening = std::move(listening)},
                             options);
  }
  return {.host = environment.num_nodes == 1 ? loopback_host : environment.master_addr,
          .port = environment.master_port,
          .secret = secret,
          .owner = environment.launcher_coordinator ? -1 : 0};
}

CoordinatorPlace listen_for_coordinator(const std::string& host, const JobSecretPtr& secret) {
  if (const auto name = coordinator::local_name(host)) return {.host = host, .listening = listen_local(*name)};
  auto [socket, address] = listen_tcp(host, read_port_range(&process_variable));
  return {.host = address.host,
          .port = static_cast<std::uint16_t>(address.port),
          .secret = secret ? secret : make_job_secret(),
          .is_secret_new = !secret,
          .listening = std::move(socket)};
}

std::string address_of(const CoordinatorPlace& place) {
  return place.host + " " + std::to_string(place.port) + " " + (place.is_secret_new ? place.secret->text() : no_secret);
}

CoordinatorPlace start_coordinator(CoordinatorPlace place, const CoordinatorOptions& options) {
  place.server = std::make_unique<coordinator::Server>(
      coordinator::ServerOptions{.listening = std::move(place.listening),
                                 .is_local = coordinator::local_name(place.host).has_value(),
                                 .secret = place.secret,
                                 .world_size = options.world_size,
                                 .job = place.job,
                                 .timeouts = options.timeouts});
  return place;
}

std::optional<CoordinatorPlace> parse_address(const std::string& address, const JobSecretPtr& secret) {
  std::istringstream words(address);
  CoordinatorPlace place;
  std::string new_secret;
  if (!(words >> place.host >> place.port >> new_secret)) return std::nullopt;
  if (secret && !coordinator::local_name(place.host)) {
    place.secret = secret;
  } else if (new_secret != no_secret) {
    place.secret = std::make_shared<JobSecret>(new_secret, "rank 0");
  }
  return place;
}

CoordinatorPlace coordinator_at_store(c10d::Store& store, const std::string& key, int rank, const std::string& host,
                                      const JobSecretPtr& secret, const CoordinatorOptions& options) {
  if (rank != 0) {
    auto place = parse_address(store.get_to_str(key), secret);
    if (place) return *std::move(place);
    throw PeerError("Unexpected data in the store: another program uses the same store.", {0});
  }
  auto place = start_coordinator(listen_for_coordinator(host, secret), options);
  store.set(key, address_of(place));
  return place;
}

}  // namespace tutti::comm
