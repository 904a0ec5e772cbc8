#pragma once
// The part of the interface of backends and transports that concerns failures: the state of the peers, and the board
// for failure reports.
#include <memory>

#include "comm/backend/transfer_error.h"

namespace tutti::comm {

/// Thread safe.
class PeerHealth {
 public:
  virtual ~PeerHealth() = default;
  /// The board on which ranks publish their failure reports; null if the group has one rank.
  virtual std::shared_ptr<FailureBoard> failure_board() = 0;
  /// True if the peer is known to have exited or to have closed the communicator.
  virtual bool peer_exited(int /*rank*/) const { return false; }
  /// Throws TransferError if the coordinator has told that ranks exited 1 s ago, or have missed heartbeats for the
  /// heartbeat timeout, or if the coordinator is lost.
  virtual void throw_if_peers_failed() const {}
  /// Ends all transfers, on this rank and, as closed connections, on the other ranks. Afterwards no transfer accesses
  /// its memory.
  virtual void close() noexcept = 0;
};

}  // namespace tutti::comm
