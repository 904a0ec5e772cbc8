#pragma once
// The messages of one group of ranks over MPI, which itself knows no peers that leave.
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <vector>

#include "comm/transport/mpi/mpi_api.h"
#include "comm/transport/mpi/mpi_tags.h"
#include "comm/transport/mpi/orphaned_requests.h"
#include "comm/transport/transport.h"

namespace tutti::comm {

/// Thread safe.
class MpiEndpoint {
 public:
  /// Takes `group` over. Call close() before it is destroyed.
  MpiEndpoint(const MpiApi& api, MpiGroup* group, MpiTags tags, int rank, int size);

  /// Both throw TransferError where the message cannot arrive.
  std::shared_ptr<MpiRequest> post(bool send, int peer, Tag tag, const Buffer& block);
  bool is_complete(const std::shared_ptr<MpiRequest>& request);
  /// Whether the close message of `peer` has come.
  bool has_closed(int peer);

  /// Sends close messages to the other ranks and ends the messages of this rank. Memory that MPI still uses stays
  /// allocated until the process exits.
  void close() noexcept;

 private:
  struct Peer {
    std::shared_ptr<MpiRequest> close_receive;
    // For what it sent before it left. A receive has its own, from its first test: MPI may need several tests for the
    // end of a long message that has arrived.
    std::optional<Deadline> close_deadline{};
    std::optional<Deadline> receive_deadline{};
  };

  std::shared_ptr<MpiRequest> start(bool send, int peer, int tag, const Buffer& block);
  bool has_closed(Peer& peer, std::optional<Deadline>& deadline);
  void send_close(bool in_order);

  const MpiApi& api_;
  const std::shared_ptr<OrphanedRequests> orphaned_ = OrphanedRequests::of_process();
  MpiGroup* group_;
  MpiTags tags_;
  int rank_;

  std::mutex mutex_;
  bool closed_ = false;
  std::unordered_set<std::shared_ptr<MpiRequest>> in_flight_;  // also those that no thread waits for
  std::vector<Peer> peers_;
};

}  // namespace tutti::comm
