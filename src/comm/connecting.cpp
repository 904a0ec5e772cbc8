#include "comm/connecting.h"

#include <algorithm>
#include <array>
#include <exception>
#include <iterator>
#include <numeric>
#include <utility>

#include "comm/choose_engine.h"
#include "comm/device/engine.h"
#include "comm/device/nccl.h"
#include "comm/engine/describe.h"
#include "comm/engine/patience.h"
#include "comm/mail/mail.h"
#include "comm/make_communicator.h"
#include "comm/meeting/pairs.h"
#include "comm/members/sockets.h"
#include "comm/messages/engine.h"
#include "comm/mpi/transport.h"
#include "core/launchers.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

constexpr const char* engine_variable = "TUTTI_ENGINE";

std::string host_at(const GlooPlace& place) {
  return place.interface.empty() ? place.address : address_of_interface(place.interface);
}

// Empty where the interface has none, which is no harm before it is needed.
std::string host_if_any(const GlooPlace& place) {
  try {
    return host_at(place);
  } catch (const std::exception&) {
    return "";
  }
}

// Ranks of several machines give one another signs of life.
std::shared_ptr<Pulse> pulse_of_job(const MetRanks& met, std::chrono::milliseconds timeout) {
  if (pairs_between_nodes(met.nodes).empty()) return nullptr;
  return std::make_shared<Pulse>(met.rendezvous, PulseOptions{.rank = met.rank,
                                                              .node_of_rank = met.nodes,
                                                              .patience = stopped_timeout(),
                                                              .connect_timeout = timeout,
                                                              .host = host_if_any(met.place)});
}

}  // namespace

std::optional<GlooPlace> place_of_interface() {
  const auto interface = process_variable("GLOO_SOCKET_IFNAME");
  if (!interface || interface->empty()) return std::nullopt;
  return GlooPlace{.interface = *interface, .address = ""};
}

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
  std::vector<int> everyone(met.nodes.size());
  std::iota(everyone.begin(), everyone.end(), 0);
  GroupPulse pulse{pulse_of_job(met, timeout), everyone};
  auto transport = wanted.starts_with("mpi")
                       ? connect_mpi(met.rendezvous, met.rank, std::move(pulse), timeout)
                       : make_gloo_transport(met.rendezvous, met.place, met.rank, std::move(pulse), timeout);
  auto messages = std::make_shared<MessageEngine>(std::move(transport), make_layout(met.nodes, met.rank));
  const bool best_for_host = wanted == "mpi" || wanted == "nccl";
  auto engine = choose_engine(messages, best_for_host ? "auto" : wanted, "job", timeout);
  if (wanted == "nccl") engine = make_device_engine(engine, nccl_backend(met.rendezvous.store), "job");
  // Ranks that share memory leave their words there.
  const bool store_may_rest = engine != messages && engine->layout().num_nodes == 1;
  // Looked up with the first message: a job without any does not need the interface to have an address.
  const auto host = [place = met.place] { return host_at(place); };
  auto mail = std::make_shared<Mail>(std::make_shared<OfficePlace>(met.rendezvous, met.rank, host), "job",
                                     std::move(everyone), met.rank);
  auto standstill =
      std::make_shared<StandstillWatch>(met.rendezvous, met.rank, static_cast<int>(met.nodes.size()), store_may_rest);
  return make_communicator(
      std::move(engine), options, "job",
      {.recorder = std::move(recorder), .mail = std::move(mail), .standstill = std::move(standstill)});
}

}  // namespace tutti::comm
