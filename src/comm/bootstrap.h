#pragma once
// The common part of all connect() functions: the requested backend, and connecting ranks after the rendezvous.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/backend/backend.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/select_device_backend.h"
#include "flight/recorder.h"
#include "tutti/comm/communicator.h"

namespace tutti::comm {

/// The backend that the program requests, or TUTTI_BACKEND if the program requests "auto". Throws UsageError for an
/// unknown backend and for timeouts that are not positive.
BackendRequest check_options(const CommunicatorOptions& options);
/// Makes the communicator of a job of one rank. Throws UsageError if the request does not fit the rank's device.
Communicator make_single_communicator(const BackendRequest& requested, const CommunicatorOptions& options);

/// The secret with which ranks encrypt what they send to each other; null unless the program or TUTTI_ENCRYPTION asks
/// for it. Throws UsageError if there is no secret.
JobSecretPtr encryption_secret(const CommunicatorOptions& options);
/// Has the messages of the job encrypted with `secret`, unless it is null.
void encrypt_messages(Rendezvous& rendezvous, const JobSecretPtr& secret);
/// Throws UsageError if a rank has asked for encryption and another rank has not.
void check_same_encryption(int rank, bool encrypts, int other, bool other_encrypts);

/// What the coordinator of a job of `size` ranks needs.
CoordinatorOptions coordinator_options(const CommunicatorOptions& options, int size);

/// Where this rank listens: a network interface's name, or an address.
struct BindAddress {
  std::string interface;
  std::string address;
};

/// The network interface that GLOO_SOCKET_IFNAME names; nullopt if it is unset or empty.
std::optional<BindAddress> bind_address_from_env();
/// The address for ranks of one machine. It does not depend on the machine's networks.
inline BindAddress loopback() {
  return {.interface = "", .address = "127.0.0.1"};
}

/// The result of a rendezvous of ranks that request the same backend.
struct RendezvousResult {
  Rendezvous rendezvous;
  int rank = 0;
  std::vector<int> nodes;           ///< by rank
  std::vector<DeviceInfo> devices;  ///< by rank
  BindAddress bind_address;         ///< the interface or address at which other ranks reach this one
};

/// Connects the ranks. Every rank must call it. `recorder` may be null. Throws UsageError, PeerError, TimeoutError.
Communicator connect_ranks(const RendezvousResult& result, const BackendRequest& requested,
                           const CommunicatorOptions& options, std::shared_ptr<flight::Recorder> recorder = nullptr);

}  // namespace tutti::comm
