#pragma once
// What all ways into a group have in common: which engine is wanted, and connecting ranks that have met.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/engine/engine.h"
#include "comm/meeting/rendezvous.h"
#include "comm/mesh/transport.h"
#include "flight/recorder.h"
#include "tutti/comm/communicator.h"

namespace tutti::comm {

/// What the program asks for or, where it leaves that open, TUTTI_ENGINE.
struct WantedEngine {
  std::string name;
  std::string asked_by;  ///< "TUTTI_ENGINE=nccl: ", or empty where the program asks
};

/// Throws UsageError for an engine that nobody knows and for timeouts that are not positive.
WantedEngine check_options(const CommunicatorOptions& options);
/// Throws UsageError where it cannot be had on this rank.
void require_nccl(const WantedEngine& wanted, int local_rank);

/// The network interface that GLOO_SOCKET_IFNAME names, as a place; nullopt where it names none.
std::optional<GlooPlace> place_of_interface();
/// On one machine, whatever its networks are.
inline GlooPlace loopback() {
  return {.interface = "", .address = "127.0.0.1"};
}

/// Ranks that have met at a store, and agree on the engine.
struct MetRanks {
  Rendezvous rendezvous;
  int rank = 0;
  std::vector<int> nodes;  ///< by rank
  GlooPlace place;         ///< where the others find this rank: an interface or an address
};

/// Connects them. Every rank must call it. `recorder` may be null. Throws UsageError, PeerFailure, Timeout.
Communicator connect_ranks(const MetRanks& met, const std::string& wanted, const CommunicatorOptions& options,
                           std::shared_ptr<flight::Recorder> recorder = nullptr);

}  // namespace tutti::comm
