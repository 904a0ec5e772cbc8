#pragma once
// Connects ranks that know where one of them will run a coordinator, and share no store.
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/rendezvous/coordinator_place.h"
#include "tutti/comm/communicator.h"
#include "tutti/comm/communicator_options.h"

namespace tutti::comm {

/// The host of a store, as this rank resolves it; empty for a store without a host.
std::string host_of_store(const c10::intrusive_ptr<c10d::Store>& store);
/// Where other ranks reach a coordinator of this rank. It listens. `store_host` (empty: MASTER_ADDR) shows the network
/// that they share, and need not be reachable; if no network is known, the socket is a local one. Throws UsageError,
/// std::system_error.
CoordinatorPlace listen_for_peers(const std::string& store_host);

/// A group to be connected, as one of its ranks sees it.
struct PeerGroup {
  int rank = 0;
  int size = 1;
  std::string agreement{};  ///< must be equal on all ranks; for messages
  std::string address{};    ///< address_of() the socket of rank 0
  CoordinatorPlace own_place{};
  std::string store_host{};
};

/// Connects the group. Rank 0 runs its coordinator. Throws UsageError (ranks disagree on the size, `agreement` or
/// backend), TimeoutError (the named ranks did not join) and PeerError.
Communicator connect_peers(PeerGroup group, const CommunicatorOptions& options);

}  // namespace tutti::comm
