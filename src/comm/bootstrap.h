#pragma once
// The common part of all connect() functions: the requested backend, and connecting ranks after the rendezvous.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/backend/backend.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/select_device_backend.h"
#include "core/socket.h"
#include "flight/recorder.h"
#include "tutti/comm/communicator.h"

namespace tutti::comm {

/// The backend that the program requests, or TUTTI_BACKEND if the program requests "auto". Throws UsageError for an
/// unknown backend and for timeouts that are not positive. Shortens timeouts to a year (longest_timeout).
BackendRequest check_options(CommunicatorOptions& options);
/// Makes the communicator of a job of one rank. Throws UsageError if the request does not fit the rank's device.
Communicator make_single_communicator(const BackendRequest& requested, const CommunicatorOptions& options);

/// The secret with which ranks encrypt what they send to each other; null unless the program or TUTTI_ENCRYPTION asks
/// for it. Throws UsageError if there is no secret.
JobSecretPtr encryption_secret(const CommunicatorOptions& options);

/// What the coordinator of a job of `size` ranks needs.
CoordinatorOptions coordinator_options(const CommunicatorOptions& options, int size);

/// What a rank publishes when the ranks meet: its node, and what all ranks must agree on.
struct RankInfo {
  std::string node{};  ///< equal for the ranks of one node
  std::string host{};  ///< the name of the machine; to_text() writes that of this one
  int local_size = 0;  ///< the number of ranks of the node, as the launcher says; 0 if it does not
  std::string backend{};
  bool encrypts = false;

  std::string to_text() const;
  static RankInfo from_text(const std::string& text);
};

/// A group whose ranks have met at the coordinator, as one of them sees it.
struct JoinedGroup {
  Rendezvous rendezvous{};
  int rank = 0;
  std::vector<std::string> rank_infos{};           ///< texts of RankInfo, by rank
  std::optional<int> local_rank{};                 ///< as the launcher says
  std::function<std::string()> network_address{};  ///< where this rank listens if the ranks are on several nodes
  JobSecretPtr secret{};                           ///< what ranks of several nodes prove to one another; may be null
  JobSecretPtr encryption{};                       ///< of encryption_secret()
  std::shared_ptr<flight::Recorder> recorder{};    ///< may be null
};

/// Connects the ranks. Every rank must call it. Throws UsageError, PeerError, TimeoutError.
Communicator connect_ranks(JoinedGroup group, const BackendRequest& requested, const CommunicatorOptions& options);

}  // namespace tutti::comm
