#pragma once
// What all ways into a group have in common: which backend is requested, and connecting ranks that have met.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/backend/backend.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/transport/gloo/gloo_transport.h"
#include "flight/recorder.h"
#include "tutti/comm/communicator.h"

namespace tutti::comm {

/// What the program asks for or, where it leaves that open, TUTTI_BACKEND.
struct BackendRequest {
  std::string name;
  std::string error_prefix;  ///< "TUTTI_BACKEND=nccl: ", or empty where the program asks
};

/// Throws UsageError for a backend that nobody knows and for timeouts that are not positive.
BackendRequest check_options(const CommunicatorOptions& options);
/// Throws UsageError where it cannot be had on this rank.
void require_nccl(const BackendRequest& requested, int local_rank);

/// The network interface that GLOO_SOCKET_IFNAME names, as a place; nullopt where it names none.
std::optional<BindAddress> bind_address_from_env();
/// On one machine, whatever its networks are.
inline BindAddress loopback() {
  return {.interface = "", .address = "127.0.0.1"};
}

/// Ranks that have met at a store, and agree on the backend.
struct RendezvousResult {
  Rendezvous rendezvous;
  int rank = 0;
  std::vector<int> nodes;    ///< by rank
  BindAddress bind_address;  ///< where the others find this rank: an interface or an address
};

/// Connects them. Every rank must call it. `recorder` may be null. Throws UsageError, PeerError, TimeoutError.
Communicator connect_ranks(const RendezvousResult& result, const std::string& requested,
                           const CommunicatorOptions& options, std::shared_ptr<flight::Recorder> recorder = nullptr);

}  // namespace tutti::comm
