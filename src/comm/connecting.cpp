#include "comm/connecting.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <utility>

#include "comm/choose_engine.h"
#include "comm/device/engine.h"
#include "comm/device/nccl.h"
#include "comm/engine/describe.h"
#include "comm/engine/patience.h"
#include "comm/mail/mail.h"
#include "comm/mail/sockets.h"
#include "comm/make_communicator.h"
#include "comm/meeting/silence.h"
#include "comm/messages/engine.h"
#include "comm/mpi/transport.h"
#include "core/launchers.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

constexpr const char* engine_variable = "TUTTI_ENGINE";

// Ranks of several machines give one another signs of life.
GroupPulse pulse_of_job(const Rendezvous& rendezvous, int rank, const std::vector<int>& nodes,
                        std::chrono::milliseconds timeout) {
  std::vector<int> everyone(nodes.size());
  std::iota(everyone.begin(), everyone.end(), 0);
  const auto watched = watched_by(rank, nodes);
  if (watched.empty()) return {nullptr, std::move(everyone)};
  const auto size = static_cast<int>(nodes.size());
  return {std::make_shared<Pulse>(rendezvous, rank, size, watched, stopped_timeout(), timeout), std::move(everyone)};
}

/// Where the mail of this rank listens. MPI's ranks may have met without an address.
std::string mail_host(const GlooPlace& place, bool one_node) {
  if (!place.interface.empty()) return address_of_interface(place.interface);
  if (!place.address.empty()) return place.address;
  if (one_node) return "127.0.0.1";
  if (const auto interface = process_variable("GLOO_SOCKET_IFNAME")) return address_of_interface(*interface);
  throw UsageError(
      "Messages from rank to rank go by TCP. Set GLOO_SOCKET_IFNAME to the network interface that the nodes share.");
}

}  // namespace

WantedEngine check_options(const CommunicatorOptions& options) {
  constexpr std::array known{"auto", "gloo", "mpi", "mpi_only", "shared_memory", "hierarchical", "nccl"};
  const auto variable = options.engine == "auto" ? process_variable(engine_variable) : std::nullopt;
  WantedEngine wanted{.name = variable.value_or(options.engine), .asked_by = {}};
  if (variable) wanted.asked_by = std::string(engine_variable) + "=" + wanted.name + ": ";
  if (std::ranges::find(known, wanted.name) == known.end()) {
    throw UsageError(wanted.asked_by + "There is no engine '" + wanted.name +
                     "'. Known: auto, gloo, mpi, mpi_only, shared_memory, hierarchical, nccl.");
  }
  for (const auto timeout : {options.timeout, options.connect_timeout}) {
    if (timeout <= std::chrono::milliseconds::zero()) {
      throw UsageError("CommunicatorOptions: a timeout must be positive, not " + describe_duration(timeout) + ".");
    }
  }
  (void)stopped_timeout();  // whose variable may be wrong
  return wanted;
}

void require_nccl(const WantedEngine& wanted, int local_rank) {
  if (wanted.name != "nccl") return;
  if (const auto why = why_no_nccl(local_rank); !why.empty()) {
    throw UsageError(wanted.asked_by + "The engine nccl cannot be used: " + why + ". Leave it at auto.");
  }
}

Communicator connect_ranks(const MetRanks& met, const std::string& wanted, const CommunicatorOptions& options,
                           std::shared_ptr<flight::Recorder> recorder) {
  const auto timeout = options.connect_timeout;
  auto pulse = pulse_of_job(met.rendezvous, met.rank, met.nodes, timeout);
  auto transport = wanted.starts_with("mpi")
                       ? connect_mpi(met.rendezvous, met.rank, std::move(pulse), timeout)
                       : make_gloo_transport(met.rendezvous, met.place, met.rank, std::move(pulse), timeout);
  auto messages = std::make_shared<MessageEngine>(std::move(transport), make_layout(met.nodes, met.rank));
  const bool best_for_host = wanted == "mpi" || wanted == "nccl";
  auto engine = choose_engine(std::move(messages), best_for_host ? "auto" : wanted, "job", timeout);
  if (wanted == "nccl") engine = make_device_engine(engine, nccl_backend(met.rendezvous.store), "job");
  const auto host = [place = met.place, one_node = std::ranges::count(met.nodes, met.nodes.front()) ==
                                                   std::ssize(met.nodes)] { return mail_host(place, one_node); };
  std::vector<int> everyone(met.nodes.size());
  std::iota(everyone.begin(), everyone.end(), 0);
  auto mail = std::make_shared<Mail>(std::make_shared<OfficePlace>(met.rendezvous, met.rank, host), "job",
                                     std::move(everyone), met.rank);
  return make_communicator(std::move(engine), options, "job", std::move(recorder), std::move(mail));
}

}  // namespace tutti::comm
